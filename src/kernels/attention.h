// Scaled dot-product attention, never storing the T x S scores (Dao et al. 2022), grouped heads
// (Ainslie et al. 2023).
#pragma once

#include <cstdint>

#include "kernels/access.h"
#include "kernels/dropout.h"

namespace megatron::kernels {

// The number of keys in a page is a multiple of this.
inline constexpr int64_t kPageKeys = 32;

// Query head n attends with key head n / (N / K). Scores s = scale * q k^T; query i sees key j when
//   begin <= k_positions[b,j] <= q_positions[b,i],
// begin being the largest of window_start[b,i] and, with p = q_positions[b,i], of p - window + 1
// (window > 0: so many keys, itself included) and of p - p % chunk (chunk > 0: Llama 4). Positions
// undefined: 0..T-1 and 0..S-1. window_start undefined: no lower bound; it is in the units of the
// positions and confines a query to its document. What lies below the bounds costs nothing where
// whole blocks of keys do. causal false: no upper bound, and window and chunk are 0.
// soft_cap > 0: s = soft_cap * tanh(scale * q k^T / soft_cap) (Gemma 2). p = softmax(s), then
// dropout on p. out = p v. lse [B,N,T] = log sum exp of the seen scores, f32 (f64 for f64); a query
// that sees no key gives out 0 and lse -infinity. sinks [N]: one more score a head without a value,
// neither scaled nor capped: lse = log(exp(sink) + sum exp(s)), p = exp(s - lse), and a query that
// sees no key gives lse = sink. Calls over parts of the keys are put together by their lse, and one
// of them alone takes the sinks.
// q, out [B,T,N,D], k, v [B,S,K,D]; last dim contiguous, other strides free; one type. Sums in f32
// (f64). A row's bits depend on its query and on the keys that it sees at their indices, not on the
// number of queries or keys. Of a sample, the keys behind the last one whose position lies between
// the lowest begin and the highest q_positions are not read: a cache may hold anything there. Other
// keys that a query does not see have to be finite.
//
// With a block table, k and v are a pool of pages [pages,P,K,D] (Kwon et al. 2023), P a multiple of
// 32: key j of sample b is row j % P of page block_table[b, j / P] and stands at position j, S =
// blocks * P. It has q_positions and no k_positions, is causal and without dropout. The table's
// entry of a page of which no query of the sample sees a key may be any page. A row's bits are
// those of the same keys without a table.
struct AttentionArgs {
  Tensor q, k, v;
  Tensor q_positions, k_positions;  // i32 [B,T], [B,S]; both or neither
  Tensor block_table;               // i32 [B,blocks]
  Tensor window_start;              // i32 [B,T]
  bool causal = true;
  double scale = 1;
  int64_t window = 0, chunk = 0;  // 0: none
  double soft_cap = 0;            // 0: none
  Tensor sinks;                   // f32 (f64) [N]; undefined: none
  DropoutArgs::Mask
      dropout;  // element (sample, query position, key position) of stream hash(layer, head)
  Tensor out, lse;

  // S
  int64_t keys() const {
    return block_table.defined() ? block_table.size(1) * k.size(1) : k.size(1);
  }
};

// lse and out are the forward's (of all keys, where the keys here are a part of them). dq, dk, dv
// as q, k, v or, all three alike, f32 (f64): written with beta 0, added to with beta 1, as where
// blocks of keys come from other ranks. dsinks [N] += -(sum over b, t of exp(sink - lse) * delta),
// delta = sum over d of out * dout: of the whole out, so that one call of those over parts of the
// keys takes sinks and dsinks. Undefined: not computed. Fixed order of summation: the same bits for
// any number of threads.
struct AttentionBackwardArgs {
  Tensor q, k, v, out, lse, dout;
  Tensor q_positions, k_positions, window_start;
  bool causal = true;
  double scale = 1;
  int64_t window = 0, chunk = 0;
  double soft_cap = 0;
  Tensor sinks;
  DropoutArgs::Mask dropout;
  Tensor dq, dk, dv;
  double beta_q = 0, beta_kv = 0;  // 0 or 1; of dq, and of dk and dv
  Accumulate dsinks;               // f32 (f64) [N]; needs sinks

  int64_t keys() const { return k.size(1); }
};

// Lowest position of a key that a query at `position` attends to, by window and chunk; 0: no bound.
constexpr int64_t lowest_seen(int64_t position, int64_t window, int64_t chunk) {
  int64_t begin = INT32_MIN;
  if (window > 0 && position - window + 1 > begin) begin = position - window + 1;
  if (chunk > 0 && position - position % chunk > begin) begin = position - position % chunk;
  return begin;
}

void check(const AttentionArgs& args);
void check(const AttentionBackwardArgs& args);

template <class F>
void visit(AttentionArgs& a, F&& f) {
  f("q", Access::read, a.q);
  f("k", Access::read, a.k);
  f("v", Access::read, a.v);
  f("q_positions", Access::read, a.q_positions);
  f("k_positions", Access::read, a.k_positions);
  f("block_table", Access::read, a.block_table);
  f("window_start", Access::read, a.window_start);
  f("sinks", Access::read, a.sinks);
  f("sample_ids", Access::read, a.dropout.sample_ids);
  f("out", Access::write, a.out);
  f("lse", Access::write, a.lse);
}
template <class F>
void visit(AttentionBackwardArgs& a, F&& f) {
  f("q", Access::read, a.q);
  f("k", Access::read, a.k);
  f("v", Access::read, a.v);
  f("out", Access::read, a.out);
  f("lse", Access::read, a.lse);
  f("dout", Access::read, a.dout);
  f("q_positions", Access::read, a.q_positions);
  f("k_positions", Access::read, a.k_positions);
  f("window_start", Access::read, a.window_start);
  f("sinks", Access::read, a.sinks);
  f("sample_ids", Access::read, a.dropout.sample_ids);
  f("dq", written(static_cast<float>(a.beta_q)), a.dq);
  f("dk", written(static_cast<float>(a.beta_kv)), a.dk);
  f("dv", written(static_cast<float>(a.beta_kv)), a.dv);
  f("dsinks", written(a.dsinks.beta), a.dsinks.out);
}

}  // namespace megatron::kernels
