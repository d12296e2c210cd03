#include "ops/attention.h"

#include "base/error.h"
#include "ops/attention_sinks.h"

namespace megatron::ops {
namespace {

// Heads of packed qkv [T, (N+2K) D], or [T, (2N+2K) D] with gates after the queries.
struct Packing {
  int64_t batch, heads, kv_heads;
  int64_t first_key;  // first key head
  bool interleaved;

  explicit Packing(const PackedHeads& packed)
      : batch(packed.batch),
        heads(packed.heads),
        kv_heads(packed.kv_heads),
        first_key(packed.gated ? 2 * packed.heads : packed.heads),
        interleaved(packed.rotary.interleaved) {}

  bool gated() const { return first_key != heads; }
  int64_t all_heads() const { return first_key + 2 * kv_heads; }
  int64_t columns(int64_t head_size) const { return all_heads() * head_size; }
  // View of `count` heads from `first` on as [T, count, D].
  Tensor part(const Tensor& qkv, int64_t first, int64_t count) const {
    const int64_t size = qkv.size(1) / all_heads();
    const std::array<int64_t, 3> strides = {qkv.stride(0), size, 1};
    return qkv.slice(1, first * size, count * size).as_strided({qkv.size(0), count, size}, strides);
  }
  Tensor q(const Tensor& qkv) const { return by_sequence(part(qkv, 0, heads)); }
  Tensor k(const Tensor& qkv) const { return by_sequence(part(qkv, first_key, kv_heads)); }
  Tensor v(const Tensor& qkv) const {
    return by_sequence(part(qkv, first_key + kv_heads, kv_heads));
  }
  // Gates of gated heads, [T, N*D].
  Tensor gate(const Tensor& qkv) const {
    const int64_t width = qkv.size(1) / all_heads() * heads;
    return qkv.slice(1, width, width);
  }
  // The rotated heads, those of q and k: contiguous unless gates are between them.
  std::vector<Tensor> rotated(const Tensor& qkv) const {
    if (!gated()) return {part(qkv, 0, heads + kv_heads)};
    return {part(qkv, 0, heads), part(qkv, first_key, kv_heads)};
  }

 private:
  Tensor by_sequence(const Tensor& t) const {
    const int64_t length = t.size(0) / batch;
    const std::array<int64_t, 4> strides = {length * t.stride(0), t.stride(0), t.stride(1), 1};
    return t.as_strided({batch, length, t.size(1), t.size(2)}, strides);
  }
};

void rotate(const Packing& packing, const Tensor& qkv, kernels::RopeArgs by,
            const kernels::Table& kernels, Stream& stream) {
  if (!by.cos.defined()) return;
  for (const Tensor& heads : packing.rotated(qkv)) {
    by.x = by.out = heads;
    kernels.rope(by, stream);
  }
}

void split_heads_dgrad(Backward& backward) {
  const auto& packing = backward.attributes<Packing>();
  const Tensor &dq = backward.gradient(0), &dk = backward.gradient(1), &dv = backward.gradient(2);
  MG_ASSERT(dq.defined() && dk.defined() && dv.defined());
  const int64_t tokens = dq.size(0) * dq.size(1), head_size = dq.size(3);
  Tensor dqkv =
      backward.empty({tokens, packing.columns(head_size)}, dq.dtype(), "split_heads.dqkv");
  const auto rotated = [&](const Tensor& gradient, int64_t first, int64_t count) {
    const Tensor in = gradient.view({tokens, count, head_size});
    const Tensor out = packing.part(dqkv, first, count);
    if (backward.saved(0).defined()) {
      backward.kernels().rope({.x = in,
                               .out = out,
                               .cos = backward.saved(0),
                               .sin = backward.saved(1),
                               .positions = backward.saved(2),
                               .interleaved = packing.interleaved,
                               .inverse = true},
                              backward.stream());
    } else {
      backward.kernels().copy({.x = in, .out = out}, backward.stream());
    }
  };
  rotated(dq, 0, packing.heads);
  rotated(dk, packing.first_key, packing.kv_heads);
  backward.kernels().copy(
      {.x = dv.view({tokens, packing.kv_heads, head_size}),
       .out = packing.part(dqkv, packing.first_key + packing.kv_heads, packing.kv_heads)},
      backward.stream());
  if (packing.gated())
    backward.kernels().copy({.x = backward.gradient(3), .out = packing.gate(dqkv)},
                            backward.stream());
  backward.set(0, dqkv);
}

struct QueriesKeysValues {
  Tensor q, k, v;
};

struct Attended {
  Tensor out, lse;
};

Attended attend(Tape& tape, const QueriesKeysValues& in, const AttentionOptions& options) {
  const Tensor& q = in.q;
  const int64_t batch = q.size(0), length = q.size(1), count = q.size(2);
  Attended made{
      .out = tape.empty({batch, length, count, in.v.size(3)}, q.dtype(), "attention.out"),
      .lse = tape.empty({batch, count, length}, kernels::accumulator(q.dtype()), "attention.lse")};
  kernels::AttentionArgs args = call_form(options);
  args.q = q;
  args.k = in.k;
  args.v = in.v;
  args.sinks = sinks_of(options, count, tape);
  args.bias = options.bias.value;
  args.out = made.out;
  args.lse = made.lse;
  tape.kernels().attention(args, tape.stream());
  return made;
}

Tensor as_rows(const Tensor& out) {
  return out.view({out.size(0) * out.size(1), out.size(2) * out.size(3)});
}

struct AttendForm {
  explicit AttendForm(const AttentionOptions& options)
      : args(gradient_form(options)), first_sink(options.first_sink) {}
  kernels::AttentionBackwardArgs args;
  int64_t first_sink;
};

// The bias of a call, which is the node's input at this index.
struct BiasInput {
  Tensor values;
  size_t index;
};

// Writes the gradients of `in` to `to`, and sets that of the bias.
void attend_back(Backward& backward, const AttendForm& form, const QueriesKeysValues& in,
                 const Tensor& out, const Tensor& lse, const QueriesKeysValues& to,
                 const BiasInput& bias) {
  const SinkGradient sinks = sink_gradient(backward, form.first_sink, in.q.size(2));
  kernels::AttentionBackwardArgs args = form.args;
  args.q = in.q;
  args.k = in.k;
  args.v = in.v;
  args.out = out;
  args.lse = lse;
  args.dout = backward.gradient(0).view(out.shape());
  args.sinks = sinks.values;
  args.dq = to.q;
  args.dk = to.k;
  args.dv = to.v;
  args.dsinks = sinks.gradient;
  args.bias = bias.values;
  if (bias.values.defined() && backward.needs(bias.index))
    args.dbias.out = backward.empty(bias.values.shape(), bias.values.dtype(), "attention.dbias");
  backward.kernels().attention_backward(args, backward.stream());
  if (args.dbias.out.defined()) backward.set(bias.index, args.dbias.out);
}

void attention_dgrad(Backward& backward) {
  const QueriesKeysValues in{backward.saved(0), backward.saved(1), backward.saved(2)};
  const QueriesKeysValues to{backward.empty(in.q.shape(), in.q.dtype(), "attention.dq"),
                             backward.empty(in.k.shape(), in.k.dtype(), "attention.dk"),
                             backward.empty(in.v.shape(), in.v.dtype(), "attention.dv")};
  attend_back(backward, backward.attributes<AttendForm>(), in, backward.saved(3), backward.saved(4),
              to, {backward.saved(5), 3});
  backward.set(0, to.q);
  backward.set(1, to.k);
  backward.set(2, to.v);
}

struct PackedAttributes {
  Packing packing;
  AttendForm form;
};

QueriesKeysValues parts(const Packing& packing, const Tensor& qkv) {
  return {packing.q(qkv), packing.k(qkv), packing.v(qkv)};
}

void packed_attention_dgrad(Backward& backward) {
  const auto& [packing, form] = backward.attributes<PackedAttributes>();
  const Tensor& qkv = backward.saved(0);
  const Tensor dqkv = backward.empty(qkv.shape(), qkv.dtype(), "attention.dqkv");
  attend_back(backward, form, parts(packing, qkv), backward.saved(1), backward.saved(2),
              parts(packing, dqkv), {backward.saved(6), 1});
  rotate(packing, dqkv,
         {.cos = backward.saved(3),
          .sin = backward.saved(4),
          .positions = backward.saved(5),
          .interleaved = packing.interleaved,
          .inverse = true},
         backward.kernels(), backward.stream());
  backward.set(0, dqkv);
}

// Values of q, k and v, with q and k rotated.
QueriesKeysValues rotated_parts(Tape& tape, const PackedHeads& packed) {
  const Packing packing(packed);
  const Rotary& rotary = packed.rotary;
  rotate(packing, packed.qkv.value,
         {.cos = rotary.cos,
          .sin = rotary.sin,
          .positions = rotary.positions,
          .interleaved = rotary.interleaved},
         tape.kernels(), tape.stream());
  return parts(packing, packed.qkv.value);
}

void as_heads_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& d = backward.gradient(0);
  backward.set(0, d.view({d.size(0) * d.size(1), d.size(2) * d.size(3)}));
}

}  // namespace

Var as_heads(Tape& tape, const Var& x, int64_t batch, int64_t heads) {
  const Tensor& rows = x.value;
  return tape.record_one({.name = "as_heads", .inputs = {x.id}, .dgrad = as_heads_dgrad},
                         rows.view({batch, rows.size(0) / batch, heads, rows.size(1) / heads}));
}

kernels::AttentionArgs call_form(const AttentionOptions& options) {
  return {.q_positions = options.q_positions,
          .k_positions = options.k_positions,
          .window_start = options.window_start,
          .window_end = options.window_end,
          .causal = options.causal,
          .scale = options.scale,
          .window = options.window,
          .chunk = options.chunk,
          .soft_cap = options.soft_cap,
          .dropout = options.dropout};
}

kernels::AttentionBackwardArgs gradient_form(const AttentionOptions& options) {
  return {.q_positions = options.q_positions,
          .k_positions = options.k_positions,
          .window_start = options.window_start,
          .window_end = options.window_end,
          .causal = options.causal,
          .scale = options.scale,
          .window = options.window,
          .chunk = options.chunk,
          .soft_cap = options.soft_cap,
          .dropout = options.dropout};
}

namespace {

Tensor wide_sinks(const Weight& sinks, int64_t first, int64_t heads, Tape& tape) {
  const Tensor value = sinks.value().slice(0, first, heads);
  const DType type = kernels::accumulator(value.dtype());
  if (value.dtype() == type) return value;
  Tensor wide = tape.empty(value.shape(), type, "attention.sinks");
  tape.kernels().copy({.x = value, .out = wide}, tape.stream());
  return wide;
}

}  // namespace

Tensor sinks_of(const AttentionOptions& options, int64_t heads, Tape& tape) {
  if (!options.sinks) return options.zero_sinks;
  return wide_sinks(options.sinks, options.first_sink, heads, tape);
}

SinkGradient sink_gradient(Backward& backward, int64_t first, int64_t heads) {
  if (backward.weights() == 0) return {};
  GradSlot slot = backward.grad_slot(0);
  if (slot.out.defined() && slot.out.size(0) != heads) {
    if (slot.beta == 0) backward.kernels().fill({.out = slot.out}, backward.stream());
    slot = {slot.out.slice(0, first, heads), 1};
  }
  return {wide_sinks(backward.weight(0), first, heads, backward.tape()), slot};
}

Heads split_heads(Tape& tape, PackedHeads&& packed) {
  const QueriesKeysValues in = rotated_parts(tape, packed);
  const Rotary& rotary = packed.rotary;
  Node node{.name = "split_heads",
            .inputs = {packed.qkv.id},
            .saved = {rotary.cos, rotary.sin, rotary.positions},
            .dgrad = split_heads_dgrad};
  const Packing packing(packed);
  node.attributes = packing;
  std::vector<Tensor> parts = {in.q, in.k, in.v};
  if (packing.gated()) parts.push_back(packing.gate(packed.qkv.value));
  const std::vector<Var> out = tape.record(std::move(node), std::move(parts));
  return {out[0], out[1], out[2], packing.gated() ? out[3] : Var()};
}

Var attention(Tape& tape, const Heads& heads, const AttentionOptions& options) {
  const QueriesKeysValues in{heads.q.value, heads.k.value, heads.v.value};
  const auto& [out, lse] = attend(tape, in, options);
  Node node{.name = "attention",
            .inputs = {heads.q.id, heads.k.id, heads.v.id, options.bias.id},
            .saved = {in.q, in.k, in.v, out, lse, options.bias.value},
            .dgrad = attention_dgrad};
  if (options.sinks) node.weights = {options.sinks};
  node.attributes = AttendForm(options);
  return tape.record_one(std::move(node), as_rows(out));
}

Var attention(Tape& tape, PackedHeads&& packed, const AttentionOptions& options) {
  MG_ASSERT(!packed.gated);
  const auto& [out, lse] = attend(tape, rotated_parts(tape, packed), options);
  const Rotary& rotary = packed.rotary;
  Node node{.name = "packed_attention",
            .inputs = {packed.qkv.id, options.bias.id},
            .saved = {packed.qkv.value, out, lse, rotary.cos, rotary.sin, rotary.positions,
                      options.bias.value},
            .dgrad = packed_attention_dgrad};
  if (options.sinks) node.weights = {options.sinks};
  node.attributes = PackedAttributes{Packing(packed), AttendForm(options)};
  return tape.record_one(std::move(node), as_rows(out));
}

}  // namespace megatron::ops
