#include "ops/attention.h"

#include "base/error.h"

namespace megatron::ops {
namespace {

struct SplitAttributes {
  int64_t heads, key_heads;
  bool interleaved;
};

// Columns [begin, begin + heads * D) of x [T, C] as [T, heads, D].
Tensor head_columns(const Tensor& x, int64_t begin, int64_t heads, int64_t head_size) {
  const std::array<int64_t, 3> strides = {x.stride(0), head_size, 1};
  return x.slice(1, begin, heads * head_size).as_strided({x.size(0), heads, head_size}, strides);
}

void split_heads_dgrad(Backward& backward) {
  const auto& [heads, key_heads, interleaved] = backward.attributes<SplitAttributes>();
  const Tensor &dq = backward.gradient(0), &dk = backward.gradient(1), &dv = backward.gradient(2);
  MG_ASSERT(dq.defined() && dk.defined() && dv.defined());
  const int64_t tokens = dq.size(0) * dq.size(1), head_size = dq.size(3);
  Tensor dqkv =
      backward.empty({tokens, (heads + 2 * key_heads) * head_size}, dq.dtype(), "split_heads.dqkv");
  const auto rotated = [&](const Tensor& gradient, int64_t begin, int64_t count) {
    const Tensor in = gradient.view({tokens, count, head_size});
    Tensor out = head_columns(dqkv, begin, count, head_size);
    if (backward.saved(0).defined()) {
      backward.kernels().rope({.x = in,
                               .out = out,
                               .cos = backward.saved(0),
                               .sin = backward.saved(1),
                               .positions = backward.saved(2),
                               .interleaved = interleaved,
                               .inverse = true},
                              backward.stream());
    } else {
      backward.kernels().copy({.x = in, .out = out}, backward.stream());
    }
  };
  rotated(dq, 0, heads);
  rotated(dk, heads * head_size, key_heads);
  backward.kernels().copy(
      {.x = dv.view({tokens, key_heads, head_size}),
       .out = head_columns(dqkv, (heads + key_heads) * head_size, key_heads, head_size)},
      backward.stream());
  backward.set(0, dqkv);
}

// [T, n, D] with free strides as [B, S, n, D].
Tensor by_sequence(const Tensor& t, int64_t batch) {
  const int64_t length = t.size(0) / batch;
  const std::array<int64_t, 4> strides = {length * t.stride(0), t.stride(0), t.stride(1), 1};
  return t.as_strided({batch, length, t.size(1), t.size(2)}, strides);
}

struct AttentionAttributes {
  double scale;
  bool causal;
  Tensor q_positions, k_positions, q_begins;
  kernels::DropoutArgs::Mask dropout;
};

void attention_dgrad(Backward& backward) {
  const auto& a = backward.attributes<AttentionAttributes>();
  const Tensor &q = backward.saved(0), &k = backward.saved(1), &v = backward.saved(2),
               &out = backward.saved(3);
  Tensor dq = backward.empty(q.shape(), q.dtype(), "attention.dq");
  Tensor dk = backward.empty(k.shape(), k.dtype(), "attention.dk");
  Tensor dv = backward.empty(v.shape(), v.dtype(), "attention.dv");
  backward.kernels().attention_backward({.q = q,
                                         .k = k,
                                         .v = v,
                                         .out = out,
                                         .lse = backward.saved(4),
                                         .dout = backward.gradient(0).view(out.shape()),
                                         .q_positions = a.q_positions,
                                         .k_positions = a.k_positions,
                                         .q_begins = a.q_begins,
                                         .causal = a.causal,
                                         .scale = a.scale,
                                         .dropout = a.dropout,
                                         .dq = dq,
                                         .dk = dk,
                                         .dv = dv},
                                        backward.stream());
  backward.set(0, dq);
  backward.set(1, dk);
  backward.set(2, dv);
}

}  // namespace

Heads split_heads(Tape& tape, const Var& qkv, int64_t batch, int64_t heads, int64_t key_heads,
                  const Rotary& rotary) {
  const int64_t tokens = qkv.value.size(0), head_size = qkv.value.size(1) / (heads + 2 * key_heads);
  const auto part = [&](int64_t begin, int64_t count, bool rotates) {
    const Tensor in = head_columns(qkv.value, begin, count, head_size);
    if (!rotary.cos.defined()) return by_sequence(in, batch);  // views: all three stay together
    Tensor out = tape.empty({tokens, count, head_size}, qkv.value.dtype(), "split_heads");
    if (rotates) {
      tape.kernels().rope({.x = in,
                           .out = out,
                           .cos = rotary.cos,
                           .sin = rotary.sin,
                           .positions = rotary.positions,
                           .interleaved = rotary.interleaved},
                          tape.stream());
    } else {
      tape.kernels().copy({.x = in, .out = out}, tape.stream());
    }
    return by_sequence(out, batch);
  };
  const Tensor q = part(0, heads, true);
  const Tensor k = part(heads * head_size, key_heads, true);
  const Tensor v = part((heads + key_heads) * head_size, key_heads, false);
  Node node{.name = "split_heads",
            .inputs = {qkv.id},
            .saved = {rotary.cos, rotary.sin, rotary.positions},
            .dgrad = split_heads_dgrad};
  node.attributes = SplitAttributes{heads, key_heads, rotary.interleaved};
  const std::vector<Var> out = tape.record(std::move(node), {q, k, v});
  return {out[0], out[1], out[2]};
}

Var attention(Tape& tape, const Heads& heads, const AttentionOptions& options) {
  if (tape.kernels().attention == nullptr) return attention_composed(tape, heads, options);
  const Tensor& q = heads.q.value;
  const int64_t batch = q.size(0), length = q.size(1), count = q.size(2), head_size = q.size(3);
  Tensor out = tape.empty({batch, length, count, head_size}, q.dtype(), "attention.out");
  Tensor lse = tape.empty({batch, count, length}, kernels::accumulator(q.dtype()), "attention.lse");
  tape.kernels().attention({.q = q,
                            .k = heads.k.value,
                            .v = heads.v.value,
                            .q_positions = options.q_positions,
                            .k_positions = options.k_positions,
                            .q_begins = options.q_begins,
                            .causal = options.causal,
                            .scale = options.scale,
                            .dropout = options.dropout,
                            .out = out,
                            .lse = lse},
                           tape.stream());
  Node node{.name = "attention",
            .inputs = {heads.q.id, heads.k.id, heads.v.id},
            .saved = {q, heads.k.value, heads.v.value, out, lse},
            .dgrad = attention_dgrad};
  node.attributes = AttentionAttributes{options.scale,       options.causal,   options.q_positions,
                                        options.k_positions, options.q_begins, options.dropout};
  return tape.record_one(std::move(node), out.view({batch * length, count * head_size}));
}

}  // namespace megatron::ops
