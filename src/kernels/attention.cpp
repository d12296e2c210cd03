#include "kernels/attention.h"

#include <initializer_list>

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

void check_positions(const Rules& rules, const Tensor& q, const Tensor& k, const Tensor& begins,
                     int64_t batch, int64_t queries, int64_t keys) {
  if (begins.defined()) rules.dense(begins, {batch, queries}, DType::i32, "window_start i32 [B,T]");
  rules.require(q.defined() == k.defined(), "q_positions and k_positions: both or neither");
  if (!q.defined()) return;
  rules.dense(q, {batch, queries}, DType::i32, "q_positions i32 [B,T]");
  rules.dense(k, {batch, keys}, DType::i32, "k_positions i32 [B,S]");
}

// q, out-like tensors [B,T,N,D] and k, v-like ones [B,S,K,D].
void check_heads(const Rules& rules, std::initializer_list<const Tensor*> queries,
                 std::initializer_list<const Tensor*> keys) {
  for (const auto* group : {&queries, &keys}) {
    const Tensor& first = **group->begin();
    for (const Tensor* t : *group) {
      rules.require(t->defined() && t->rank() == 4 && t->shape() == first.shape(),
                    "q, out and their gradients [B,T,N,D] alike; k, v and theirs [B,S,K,D] alike");
      rules.require(t->dtype() == (*queries.begin())->dtype(), "one type");
      rules.require(last_is_dense(*t), "last dim contiguous");
    }
  }
  const Tensor &q = **queries.begin(), &k = **keys.begin();
  rules.require(is_float_type(q), "a floating type");
  rules.require(q.size(0) == k.size(0) && q.size(3) == k.size(3), "q and k share B and D");
  rules.require(k.size(2) > 0 && q.size(2) % k.size(2) == 0,
                "query heads are a multiple of key heads");
}

template <class Args>
void check_scores(const Rules& rules, const Args& args) {
  rules.require(args.window >= 0 && args.chunk >= 0 && args.soft_cap >= 0,
                "window, chunk and soft_cap are 0 or more");
  if (args.sinks.defined())
    rules.dense(args.sinks, {args.q.size(2)}, accumulator(args.q.dtype()), "sinks f32 (f64) [N]");
}

}  // namespace

void check(const AttentionArgs& args) {
  const Rules rules("attention", {{"q", args.q},
                                  {"k", args.k},
                                  {"v", args.v},
                                  {"out", args.out},
                                  {"lse", args.lse},
                                  {"q_positions", args.q_positions},
                                  {"k_positions", args.k_positions},
                                  {"window_start", args.window_start},
                                  {"sinks", args.sinks},
                                  {"sample_ids", args.dropout.sample_ids}});
  check_heads(rules, {&args.q, &args.out}, {&args.k, &args.v});
  const Tensor& q = args.q;
  rules.dense(args.lse, {q.size(0), q.size(2), q.size(1)}, accumulator(q.dtype()),
              "lse f32 (f64) [B,N,T]");
  check_positions(rules, args.q_positions, args.k_positions, args.window_start, q.size(0),
                  q.size(1), args.k.size(1));
  check_scores(rules, args);
  check_mask(rules, args.dropout, q.size(0));
}

void check(const AttentionBackwardArgs& args) {
  const Rules rules("attention_backward", {{"q", args.q},
                                           {"k", args.k},
                                           {"v", args.v},
                                           {"out", args.out},
                                           {"lse", args.lse},
                                           {"dout", args.dout},
                                           {"dq", args.dq},
                                           {"dk", args.dk},
                                           {"dv", args.dv},
                                           {"q_positions", args.q_positions},
                                           {"k_positions", args.k_positions},
                                           {"window_start", args.window_start},
                                           {"sinks", args.sinks},
                                           {"dsinks", args.dsinks.out},
                                           {"sample_ids", args.dropout.sample_ids}});
  check_heads(rules, {&args.q, &args.out, &args.dout, &args.dq},
              {&args.k, &args.v, &args.dk, &args.dv});
  const Tensor& q = args.q;
  rules.dense(args.lse, {q.size(0), q.size(2), q.size(1)}, accumulator(q.dtype()),
              "lse f32 (f64) [B,N,T]");
  check_positions(rules, args.q_positions, args.k_positions, args.window_start, q.size(0),
                  q.size(1), args.k.size(1));
  check_scores(rules, args);
  if (args.dsinks.out.defined()) {
    rules.defined(args.sinks, "dsinks of sinks");
    rules.dense(args.dsinks.out, {q.size(2)}, accumulator(q.dtype()), "dsinks f32 (f64) [N]");
    rules.require(args.dsinks.beta == 0 || args.dsinks.beta == 1, "beta is 0 or 1");
  }
  check_mask(rules, args.dropout, q.size(0));
}

void check(const SoftmaxArgs& args) {
  const Rules rules("softmax", {{"s", args.s},
                                {"p", args.p},
                                {"lse", args.lse},
                                {"q_positions", args.q_positions},
                                {"k_positions", args.k_positions},
                                {"window_start", args.window_start}});
  rules.require(
      args.s.defined() && args.s.rank() == 4 && args.s.is_contiguous() && is_float_type(args.s),
      "s [B,N,T,S] contiguous");
  const Shape s = args.s.shape();
  rules.dense(args.p, s, args.s.dtype(), "p as s");
  rules.dense(args.lse, {s[0], s[1], s[2]}, accumulator(args.s.dtype()), "lse f32 (f64) [B,N,T]");
  check_positions(rules, args.q_positions, args.k_positions, args.window_start, s[0], s[2], s[3]);
}

void check(const SoftmaxBackwardArgs& args) {
  const Rules rules("softmax_backward", {{"p", args.p}, {"dp", args.dp}, {"ds", args.ds}});
  rules.require(
      args.p.defined() && args.p.rank() == 4 && args.p.is_contiguous() && is_float_type(args.p),
      "p [B,N,T,S] contiguous");
  rules.dense(args.dp, args.p.shape(), args.p.dtype(), "dp as p");
  rules.dense(args.ds, args.p.shape(), args.p.dtype(), "ds as p");
}

}  // namespace megatron::kernels
