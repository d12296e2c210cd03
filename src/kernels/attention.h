// Scaled dot-product attention that never stores the T x S scores (Dao et al. 2022), with grouped
// heads (Ainslie et al. 2023).
#pragma once

#include <cstdint>

#include "kernels/access.h"
#include "kernels/dropout.h"

namespace megatron::kernels {

// The number of keys in a page must be a multiple of this.
inline constexpr int64_t kPageKeys = 32;

// Query head n attends with key head n / (N / K). Scores s = scale * q k^T; query i sees key j if
//   begin <= k_positions[b,j] <= end.
// begin is the largest of window_start[b,i] and, with p = q_positions[b,i], of p - window + 1
// (window > 0: number of keys, including the query's own) and of p - p % chunk (chunk > 0: Llama
// 4). causal: end is p. causal false (encoders): end is the smallest of window_end[b,i] and, with
// window > 0, of p + window - 1, so that a window has window - 1 keys on each side of the query's
// own; chunk must be 0. Undefined positions count up: 0..T-1 and 0..S-1. window_start and
// window_end confine a query to its document, in the units of positions; undefined: no bound. Whole
// blocks of keys outside the bounds are skipped.
//
// soft_cap > 0: s = soft_cap * tanh(scale * q k^T / soft_cap) (Gemma 2). p = softmax(s), then
// dropout on p. out = p v. lse [B,N,T] = log sum exp of the visible scores, f32 (f64 for f64). A
// query that sees no key gets out 0 and lse -infinity. sinks [N]: one additional score per head,
// without a value vector and neither scaled nor capped: lse = log(exp(sink) + sum exp(s)), p =
// exp(s - lse), and lse = sink for a query that sees no key. Calls over parts of the keys are
// combined by their lse; exactly one of them takes the sinks.
//
// bias [2R+1,N] adds to the scores by distance (Raffel et al. 2020, 2.1; Press et al. 2022): the
// score of query position p and key position j, scaled and capped, gets bias[R + clamp(j - p, -R,
// R), n]. q [B,T,N,D], k [B,S,K,D], v
// [B,S,K,V], out [B,T,N,V]; last dim contiguous, other strides free; one type. V, the size of a
// value, may differ from D (latent attention). Sums in f32 (f64). A row's bits depend on its query
// and on the keys that it sees and their indices, not on the number of queries or keys. In each
// sample, the keys after the last one whose position is between the lowest begin and the highest
// end are not read, so a cache may hold anything there. Other invisible keys must be finite.
//
// With a block table, k and v are pools of pages [pages,P,K,D] and [pages,P,K,V] (Kwon et al.
// 2023), P a multiple of
// 32. Key j of sample b is row j % P of page block_table[b, j / P] and has position j, S = blocks *
// P. Such a call has q_positions but no k_positions, is causal and has no dropout. Table entries of
// pages in which no query of the sample sees a key may name any page. A row's bits are the same as
// without a table, except for latents (kernels/latents.h).
struct AttentionArgs {
  Tensor q, k, v;
  Tensor q_positions, k_positions;  // i32 [B,T], [B,S]; both or neither
  Tensor block_table;               // i32 [B,blocks]
  Tensor window_start;              // i32 [B,T]: lowest key position that each query sees
  Tensor
      window_end;  // i32 [B,T]: highest key position that each query sees; only with causal false
  bool causal = true;
  double scale = 1;
  int64_t window = 0, chunk = 0;  // 0: none
  double soft_cap = 0;            // 0: none
  Tensor sinks;                   // f32 (f64) [N]; undefined: none
  Tensor bias;                    // f32 (f64) [2R+1,N], any strides; undefined: none
  DropoutArgs::Mask
      dropout;  // element (sample, query position, key position) of stream hash(layer, head)
  Tensor out, lse;

  // S
  int64_t keys() const {
    return block_table.defined() ? block_table.size(1) * k.size(1) : k.size(1);
  }
};

// lse and out are the forward's (over all keys, even if this call has a part of them). dq, dk, dv
// have the type of q, k, v, or all three are f32 (f64); beta 0 writes them, beta 1 adds, for
// example if blocks of keys come from other ranks. dsinks [N] += -(sum over b, t of exp(sink - lse)
// * delta), delta = sum over d of out * dout. delta covers the whole out, so only one of the calls
// over parts of the keys takes sinks and dsinks. dbias [2R+1,N] is the sum, over samples, queries
// and keys of this call, of the gradients of the scores at each distance: calls over parts of the
// keys add their sums. Undefined dsinks and dbias are not computed. The order of summation is
// fixed: any number of threads gives the same bits.
struct AttentionBackwardArgs {
  Tensor q, k, v, out, lse, dout;
  Tensor q_positions, k_positions, window_start, window_end;
  bool causal = true;
  double scale = 1;
  int64_t window = 0, chunk = 0;
  double soft_cap = 0;
  Tensor sinks, bias;
  DropoutArgs::Mask dropout;
  Tensor dq, dk, dv;
  double beta_q = 0, beta_kv = 0;  // 0 or 1; for dq, and for dk and dv
  Accumulate dsinks;               // f32 (f64) [N]; needs sinks
  Accumulate dbias;                // f32 (f64) [2R+1,N]; needs bias

  int64_t keys() const { return k.size(1); }
};

// Lowest key position that a query at `position` sees, given window and chunk (0: no bound).
constexpr int64_t lowest_seen(int64_t position, int64_t window, int64_t chunk) {
  int64_t begin = INT32_MIN;
  if (window > 0 && position - window + 1 > begin) begin = position - window + 1;
  if (chunk > 0 && position - position % chunk > begin) begin = position - position % chunk;
  return begin;
}
// Highest key position that a query at `position` sees, given causal and window (0: no bound). Keys
// at INT32_MAX are never seen.
constexpr int64_t highest_seen(int64_t position, bool causal, int64_t window) {
  if (causal) return position;
  const int64_t last = INT32_MAX - 1;
  return window > 0 && position + window - 1 < last ? position + window - 1 : last;
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
  f("window_end", Access::read, a.window_end);
  f("sinks", Access::read, a.sinks);
  f("bias", Access::read, a.bias);
  f("sample_ids", Access::read, a.dropout.rows.sample_ids);
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
  f("window_end", Access::read, a.window_end);
  f("sinks", Access::read, a.sinks);
  f("bias", Access::read, a.bias);
  f("sample_ids", Access::read, a.dropout.rows.sample_ids);
  f("dq", written(static_cast<float>(a.beta_q)), a.dq);
  f("dk", written(static_cast<float>(a.beta_kv)), a.dk);
  f("dv", written(static_cast<float>(a.beta_kv)), a.dv);
  f("dsinks", written(a.dsinks.beta), a.dsinks.out);
  f("dbias", written(a.dbias.beta), a.dbias.out);
}

}  // namespace megatron::kernels
