#include "kernels/attention.h"

#include <initializer_list>

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

void check_bias(const Rules& rules, const Tensor& bias, int64_t heads, DType type) {
  rules.require(
      bias.rank() == 2 && bias.size(0) % 2 == 1 && bias.size(1) == heads && bias.dtype() == type,
      "bias f32 (f64) [2R+1,N]");
  rules.require((bias.size(0) - 1) * bias.stride(0) + (heads - 1) * bias.stride(1) < INT32_MAX,
                "bias within 2^31 elements of memory");
}

// Rules shared by forward and backward.
template <class Args>
void check_shared(const Rules& rules, const Args& args) {
  const int64_t batch = args.q.size(0), queries = args.q.size(1), heads = args.q.size(2);
  const DType sums = accumulator(args.q.dtype());
  rules.dense(args.lse, {batch, heads, queries}, sums, "lse f32 (f64) [B,N,T]");
  rules.require(args.window >= 0 && args.chunk >= 0, "window and chunk >= 0");
  rules.require(args.causal || args.chunk == 0, "chunk with causal only");
  rules.require(!args.causal || !args.window_end.defined(), "window_end without causal only");
  rules.require(args.soft_cap >= 0, "soft_cap >= 0");
  rules.optional(args.sinks, {heads}, sums, "sinks f32 (f64) [N]");
  if (args.bias.defined()) check_bias(rules, args.bias, heads, sums);
  check_mask(rules, args.dropout, batch);
}

// Rules for keys that are stored by sample, not in pages.
template <class Args>
void check_samples(const Rules& rules, const Args& args) {
  const int64_t batch = args.q.size(0), queries = args.q.size(1);
  const Tensor &q = args.q_positions, &k = args.k_positions;
  rules.require(args.k.size(0) == batch, "q and k share B");
  rules.optional(args.window_start, {batch, queries}, DType::i32, "window_start i32 [B,T]");
  rules.optional(args.window_end, {batch, queries}, DType::i32, "window_end i32 [B,T]");
  rules.require(q.defined() == k.defined(), "q_positions and k_positions: both or neither");
  rules.optional(q, {batch, queries}, DType::i32, "q_positions i32 [B,T]");
  rules.optional(k, {batch, args.k.size(1)}, DType::i32, "k_positions i32 [B,S]");
}

// dq, dk and dv must have the same type: q's, or a wider one.
void check_gradients(const Rules& rules, const AttentionBackwardArgs& args) {
  const Tensor *of[] = {&args.q, &args.k, &args.v}, *to[] = {&args.dq, &args.dk, &args.dv};
  for (int i = 0; i < 3; ++i) {
    rules.require(to[i]->defined() && to[i]->shape() == of[i]->shape() && last_is_dense(*to[i]),
                  "dq, dk, dv as q, k, v, last dim contiguous");
    rules.require(to[i]->dtype() == args.dq.dtype(), "dq, dk and dv of one type");
  }
  rules.require(args.dq.dtype() == args.q.dtype() || args.dq.dtype() == accumulator(args.q.dtype()),
                "dq, dk, dv of q's type or f32 (f64)");
  for (const double beta : {args.beta_q, args.beta_kv})
    rules.require(beta == 0 || beta == 1, "beta 0 or 1");
}

// q [B,T,N,D], k [B,S,K,D], v [B,S,K,V], and tensors like out [B,T,N,V].
void check_heads(const Rules& rules, const Tensor& q, const Tensor& k, const Tensor& v,
                 std::initializer_list<const Tensor*> outs) {
  const auto check_one = [&](const Tensor& t) {
    rules.require(t.defined() && t.rank() == 4 && t.dtype() == q.dtype() && last_is_dense(t),
                  "four dims, one type, last dim contiguous");
  };
  for (const Tensor* t : {&q, &k, &v}) check_one(*t);
  for (const Tensor* t : outs) {
    check_one(*t);
    rules.require(t->shape() == Shape({q.size(0), q.size(1), q.size(2), v.size(3)}),
                  "out and its gradient [B,T,N,V]");
  }
  rules.require(v.shape() == Shape({k.size(0), k.size(1), k.size(2), v.size(3)}),
                "k [B,S,K,D] and v [B,S,K,V] alike");
  rules.require(is_float_type(q), "a floating type");
  rules.require(q.size(3) == k.size(3), "q and k share D");
  rules.require(k.size(2) > 0 && q.size(2) % k.size(2) == 0,
                "query heads are a multiple of key heads");
}

// Rules for keys in pages.
void check_pages(const Rules& rules, const AttentionArgs& args) {
  const Tensor& table = args.block_table;
  rules.indices(table, 2, "block_table i32 [B,blocks] contiguous");
  rules.require(table.size(0) == args.q.size(0), "block_table and q share B");
  rules.require(args.k.size(1) > 0 && args.k.size(1) % kPageKeys == 0,
                "pages of a multiple of 32 keys");
  rules.dense(args.q_positions, {args.q.size(0), args.q.size(1)}, DType::i32,
              "q_positions i32 [B,T] with block_table");
  rules.require(!args.k_positions.defined() && !args.window_start.defined() && args.causal &&
                    args.dropout.p == 0,
                "block_table with causal, without k_positions, window_start and dropout");
}

}  // namespace

void check(const AttentionArgs& args) {
  const Rules rules("attention", args);
  check_heads(rules, args.q, args.k, args.v, {&args.out});
  args.block_table.defined() ? check_pages(rules, args) : check_samples(rules, args);
  check_shared(rules, args);
}

void check(const AttentionBackwardArgs& args) {
  const Rules rules("attention_backward", args);
  check_heads(rules, args.q, args.k, args.v, {&args.out, &args.dout});
  check_gradients(rules, args);
  check_samples(rules, args);
  check_shared(rules, args);
  rules.require(!args.dsinks.out.defined() || args.sinks.defined(), "dsinks with sinks");
  rules.optional(args.dsinks.out, {args.q.size(2)}, accumulator(args.q.dtype()),
                 "dsinks f32 (f64) [N]");
  if (!args.dbias.out.defined()) return;
  rules.require(args.bias.defined(), "dbias with bias");
  rules.sum(args.dbias, args.bias.shape(), accumulator(args.q.dtype()),
            "dbias f32 (f64) [2R+1,N] contiguous");
}

}  // namespace megatron::kernels
