// Attention by matrix products and a softmax: the fused kernel's definition.
#include "base/error.h"
#include "ops/attention.h"
#include "ops/attention_sinks.h"

namespace megatron::ops {
namespace {

// Calls f(batch, head, key head) for each query head.
template <class F>
void for_each_head(const Tensor& q, const Tensor& k, F&& f) {
  const int64_t share = q.size(2) / k.size(2);
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t n = 0; n < q.size(2); ++n) f(b, n, n / share);
  }
}

Tensor head(const Tensor& t, int64_t batch, int64_t index) {
  return t.select(0, batch).select(1, index);
}  // [S,D]
Tensor scores(const Tensor& t, int64_t batch, int64_t index) {
  return t.select(0, batch).select(0, index);
}  // [T,S]

struct ComposedAttributes {
  double scale, soft_cap;
};

void composed_dgrad(Backward& backward) {
  const auto& [scale, soft_cap] = backward.attributes<ComposedAttributes>();
  const Tensor &q = backward.saved(0), &k = backward.saved(1), &v = backward.saved(2),
               &p = backward.saved(3);
  const Tensor dout = backward.gradient(0).view(q.shape());
  Tensor dq = backward.empty(q.shape(), q.dtype(), "attention.dq");
  Tensor dk = backward.empty(k.shape(), k.dtype(), "attention.dk");
  Tensor dv = backward.empty(v.shape(), v.dtype(), "attention.dv");
  Tensor ds = backward.empty(p.shape(), p.dtype(), "attention.ds");
  const kernels::Table& table = backward.kernels();
  Stream& stream = backward.stream();
  for_each_head(q, k, [&](int64_t b, int64_t n, int64_t j) {
    table.gemm(
        {.a = head(dout, b, n), .b = head(v, b, j), .out = scores(ds, b, n), .transpose_b = true},
        stream);
  });
  const SinkGradient sinks = sink_gradient(backward);
  table.softmax_backward({.p = p,
                          .dp = ds,
                          .ds = ds,
                          .scale = scale,
                          .soft_cap = soft_cap,
                          .lse = backward.saved(4),
                          .sinks = sinks.values,
                          .dsinks = sinks.gradient},
                         stream);
  const int64_t share = q.size(2) / k.size(2);
  for_each_head(q, k, [&](int64_t b, int64_t n, int64_t j) {
    const float beta = n % share == 0 ? 0.0f : 1.0f;
    table.gemm({.a = scores(ds, b, n), .b = head(k, b, j), .out = head(dq, b, n)}, stream);
    table.gemm({.a = scores(ds, b, n),
                .b = head(q, b, n),
                .out = head(dk, b, j),
                .transpose_a = true,
                .beta = beta},
               stream);
    table.gemm({.a = scores(p, b, n),
                .b = head(dout, b, n),
                .out = head(dv, b, j),
                .transpose_a = true,
                .beta = beta},
               stream);
  });
  backward.set(0, dq);
  backward.set(1, dk);
  backward.set(2, dv);
}

}  // namespace

Var attention_composed(Tape& tape, const Heads& heads, const AttentionOptions& options) {
  MG_CHECK(options.dropout.p == 0,
           "attention dropout {} needs a back-end with a fused attention kernel; use "
           "--attention-dropout 0",
           options.dropout.p);
  const Tensor &q = heads.q.value, &k = heads.k.value, &v = heads.v.value;
  const int64_t batch = q.size(0), length = q.size(1), count = q.size(2), head_size = q.size(3),
                keys = k.size(1);
  Tensor p = tape.empty({batch, count, length, keys}, q.dtype(), "attention.probabilities");
  Tensor lse = tape.empty({batch, count, length}, kernels::accumulator(q.dtype()), "attention.lse");
  Tensor out = tape.empty({batch, length, count, head_size}, q.dtype(), "attention.out");
  for_each_head(q, k, [&](int64_t b, int64_t n, int64_t j) {
    tape.kernels().gemm(
        {.a = head(q, b, n), .b = head(k, b, j), .out = scores(p, b, n), .transpose_b = true},
        tape.stream());
  });
  tape.kernels().softmax({.s = p,
                          .p = p,
                          .lse = lse,
                          .q_positions = options.q_positions,
                          .k_positions = options.k_positions,
                          .window_start = options.window_start,
                          .causal = options.causal,
                          .scale = options.scale,
                          .window = options.window,
                          .chunk = options.chunk,
                          .soft_cap = options.soft_cap,
                          .sinks = wide_sinks(options.sinks, tape)},
                         tape.stream());
  for_each_head(q, k, [&](int64_t b, int64_t n, int64_t j) {
    tape.kernels().gemm({.a = scores(p, b, n), .b = head(v, b, j), .out = head(out, b, n)},
                        tape.stream());
  });
  Node node{.name = "attention_composed",
            .inputs = {heads.q.id, heads.k.id, heads.v.id},
            .saved = {q, k, v, p, options.soft_cap > 0 || options.sinks ? lse : Tensor()},
            .dgrad = composed_dgrad};
  if (options.sinks) node.weights = {options.sinks};
  node.attributes = ComposedAttributes{options.scale, options.soft_cap};
  return tape.record_one(std::move(node), out.view({batch * length, count * head_size}));
}

}  // namespace megatron::ops
