#include "ops/state_space.h"

#include <array>

#include "base/error.h"

namespace megatron::ops {
namespace {

using kernels::GateOrder;

struct StateSpaceAttributes {
  StateSpaceShape shape;
  int64_t sequences = 1;
  double min_step = 0, max_step = 0, eps = 0;
  GateOrder order = GateOrder::gate_first;
  bool has_bias = false;

  int64_t norm_groups() const { return order == GateOrder::gate_only ? 1 : shape.groups; }
};

// Columns [first, first + heads * size) of rows [B*S, ...] as [B,S,heads,size], or without heads as
// [B,S,size].
Tensor columns_by_sequence(const Tensor& rows, int64_t sequences, int64_t first, int64_t size) {
  const int64_t length = sequences == 0 ? 0 : rows.size(0) / sequences;
  const std::array<int64_t, 3> strides = {length * rows.stride(0), rows.stride(0), 1};
  return rows.slice(1, first, size).as_strided({sequences, length, size}, strides);
}
Tensor columns_by_sequence(const Tensor& rows, int64_t sequences, int64_t first, int64_t heads,
                           int64_t size) {
  const int64_t length = sequences == 0 ? 0 : rows.size(0) / sequences;
  const std::array<int64_t, 4> strides = {length * rows.stride(0), rows.stride(0), size, 1};
  return rows.slice(1, first, heads * size).as_strided({sequences, length, heads, size}, strides);
}

// The parts of a projection [z | x | b | c | dt]; those between z and dt pass through the
// convolution.
struct Projection {
  Tensor z;         // [T, H P]
  Tensor channels;  // [B,S,C]
  Tensor dt;        // [B,S,H]
};
Projection projection_of(const Tensor& rows, int64_t sequences, const StateSpaceShape& shape) {
  const int64_t width = shape.width(), channels = shape.channels();
  MG_ASSERT(rows.size(1) == shape.projected());
  return {.z = rows.slice(1, 0, width),
          .channels = columns_by_sequence(rows, sequences, width, channels),
          .dt = columns_by_sequence(rows, sequences, width + channels, shape.heads)};
}

// What the convolution gives, [T,C], as the inputs of the scan.
struct ScanInputs {
  Tensor x, b, c;
};
ScanInputs scan_inputs(const Tensor& rows, int64_t sequences, const StateSpaceShape& shape) {
  const int64_t width = shape.width(), group = shape.groups * shape.states;
  return {.x = columns_by_sequence(rows, sequences, 0, shape.heads, shape.head_size),
          .b = columns_by_sequence(rows, sequences, width, shape.groups, shape.states),
          .c = columns_by_sequence(rows, sequences, width + group, shape.groups, shape.states)};
}

// As [C,K]: on disk there is a dim of one channel between them.
Tensor conv_matrix(const Tensor& weight) {
  return weight.view({weight.size(0), weight.elements() / std::max<int64_t>(weight.size(0), 1)});
}

Tensor value_or_none(const Weight& weight) { return weight ? weight.value() : Tensor(); }

Tensor starts_of(const Tensor& starts, int64_t sequences, int64_t length) {
  return starts.defined() ? starts.view({sequences, length}) : starts;
}

enum WeightIndex : size_t { kConv, kALog, kDtBias, kD, kOptional };

kernels::StateScanNumbers numbers_of(const StateSpace& space) {
  return {.a_log = space.a_log.value(),
          .dt_bias = space.dt_bias.value(),
          .d = space.d.value(),
          .min_step = space.min_step,
          .max_step = space.max_step};
}

// Indices of the weights that not every node has.
size_t bias_index() { return kOptional; }
size_t norm_index(const StateSpaceAttributes& a) { return kOptional + (a.has_bias ? 1 : 0); }

Tensor convolved(Tape& tape, const Projection& parts, const Tensor& weight, const Tensor& bias,
                 const Tensor& starts, const StateSpaceShape& shape) {
  const int64_t sequences = parts.channels.size(0), length = parts.channels.size(1);
  const Tensor out = tape.empty({sequences * length, shape.channels()}, parts.channels.dtype(),
                                "state_space.convolved");
  tape.kernels().causal_conv({.x = parts.channels,
                              .weight = conv_matrix(weight),
                              .bias = bias,
                              .starts = starts_of(starts, sequences, length),
                              .out = columns_by_sequence(out, sequences, 0, shape.channels())},
                             tape.stream());
  return out;
}

// Gradients of the gated norm's inputs: that of z in its columns of dprojected, and that of the
// scan's output, which is returned.
Tensor norm_backward(Backward& backward, const Projection& parts, const Projection& gradients) {
  const auto& a = backward.attributes<StateSpaceAttributes>();
  const bool weighted = a.order != GateOrder::gate_only;
  const Tensor &scanned = backward.saved(1), &dout = backward.gradient(0);
  Tensor dscanned = backward.empty(scanned.shape(), scanned.dtype(), "state_space.dscanned");
  backward.kernels().gated_norm_backward(
      {.order = a.order,
       .groups = a.norm_groups(),
       .x = scanned,
       .z = parts.z,
       .weight = weighted ? backward.weight(norm_index(a)).value() : Tensor(),
       .rstd = weighted ? backward.saved(2) : Tensor(),
       .dout = dout,
       .dx = dscanned,
       .dz = gradients.z,
       .dweight = weighted ? backward.grad_slot(norm_index(a)) : GradSlot{}},
      backward.stream());
  return dscanned;
}

// saved: projected, the scan's output, rstd (undefined without a norm), starts.
void state_space_dgrad(Backward& backward) {
  const auto& a = backward.attributes<StateSpaceAttributes>();
  const StateSpaceShape& shape = a.shape;
  const Tensor &projected = backward.saved(0), &starts = backward.saved(3);
  const int64_t rows = projected.size(0), sequences = a.sequences;
  const int64_t length = sequences == 0 ? 0 : rows / sequences;
  const Projection parts = projection_of(projected, sequences, shape);
  const Tensor dprojected =
      backward.empty(projected.shape(), projected.dtype(), "state_space.dprojected");
  const Projection gradients = projection_of(dprojected, sequences, shape);
  const Tensor dscanned = norm_backward(backward, parts, gradients);

  const Tensor weight = conv_matrix(backward.weight(kConv).value());
  const Tensor bias = a.has_bias ? backward.weight(bias_index()).value() : Tensor();
  const Tensor own =
      convolved(backward.tape(), parts, backward.weight(kConv).value(), bias, starts, shape);
  const Tensor down = backward.empty(own.shape(), own.dtype(), "state_space.dconvolved");
  const ScanInputs in = scan_inputs(own, sequences, shape),
                   din = scan_inputs(down, sequences, shape);
  backward.kernels().state_scan_backward(
      {.x = in.x,
       .dt = parts.dt,
       .b = in.b,
       .c = in.c,
       .numbers = {.a_log = backward.weight(kALog).value(),
                   .dt_bias = backward.weight(kDtBias).value(),
                   .d = backward.weight(kD).value(),
                   .min_step = a.min_step,
                   .max_step = a.max_step},
       .starts = starts_of(starts, sequences, length),
       .dout = columns_by_sequence(dscanned, sequences, 0, shape.heads, shape.head_size),
       .dx = din.x,
       .ddt = gradients.dt,
       .db = din.b,
       .dc = din.c,
       .da_log = backward.grad_slot(kALog),
       .ddt_bias = backward.grad_slot(kDtBias),
       .dd = backward.grad_slot(kD)},
      backward.stream());
  GradSlot dweight = backward.grad_slot(kConv);
  if (dweight.out.defined()) dweight.out = conv_matrix(dweight.out);
  backward.kernels().causal_conv_backward(
      {.x = parts.channels,
       .weight = weight,
       .bias = bias,
       .starts = starts_of(starts, sequences, length),
       .dout = columns_by_sequence(down, sequences, 0, shape.channels()),
       .dx = gradients.channels,
       .dweight = dweight,
       .dbias = a.has_bias ? backward.grad_slot(bias_index()) : GradSlot{}},
      backward.stream());
  if (backward.needs(0)) backward.set(0, dprojected);
}

kernels::GatedNormArgs norm_args(Tape& tape, const StateSpace& space, const Tensor& scanned,
                                 const Tensor& z, const Tensor& out) {
  const bool weighted = space.order != GateOrder::gate_only;
  return {.order = space.order,
          .groups = weighted ? space.shape.groups : 1,
          .eps = space.eps,
          .x = scanned,
          .z = z,
          .weight = weighted ? space.norm.value() : Tensor(),
          .out = out,
          .rstd = weighted ? tape.empty({scanned.size(0), space.shape.groups},
                                        kernels::accumulator(scanned.dtype()), "state_space.rstd")
                           : Tensor()};
}

}  // namespace

Var state_space(Tape& tape, const Var& projected, int64_t sequences, const StateSpace& space,
                const Tensor& starts) {
  const StateSpaceShape& shape = space.shape;
  const int64_t rows = projected.value.size(0);
  const int64_t length = sequences == 0 ? 0 : rows / sequences;
  const DType type = projected.value.dtype();
  const Projection parts = projection_of(projected.value, sequences, shape);
  const Tensor scanned = tape.empty({rows, shape.width()}, type, "state_space.scanned");
  {
    const Tensor own =
        convolved(tape, parts, space.conv.value(), value_or_none(space.conv_bias), starts, shape);
    const ScanInputs in = scan_inputs(own, sequences, shape);
    tape.kernels().state_scan(
        {.x = in.x,
         .dt = parts.dt,
         .b = in.b,
         .c = in.c,
         .numbers = numbers_of(space),
         .starts = starts_of(starts, sequences, length),
         .out = columns_by_sequence(scanned, sequences, 0, shape.heads, shape.head_size)},
        tape.stream());
  }
  const Tensor out = tape.empty({rows, shape.width()}, type, "state_space");
  const kernels::GatedNormArgs norm = norm_args(tape, space, scanned, parts.z, out);
  tape.kernels().gated_norm(norm, tape.stream());

  Node node{.name = "state_space",
            .inputs = {projected.id},
            .saved = {projected.value, scanned, norm.rstd, starts},
            .weights = {space.conv, space.a_log, space.dt_bias, space.d},
            .dgrad = state_space_dgrad};
  if (space.conv_bias) node.weights.push_back(space.conv_bias);
  if (space.norm) node.weights.push_back(space.norm);
  node.attributes = StateSpaceAttributes{.shape = shape,
                                         .sequences = sequences,
                                         .min_step = space.min_step,
                                         .max_step = space.max_step,
                                         .eps = space.eps,
                                         .order = space.order,
                                         .has_bias = static_cast<bool>(space.conv_bias)};
  return tape.record_one(std::move(node), out);
}

void continue_state_space(const Tensor& projected, const StateSpace& space,
                          const StateSpaceSlots& slots, const Tensor& out, Tape& tape) {
  MG_ASSERT(!tape.recording());
  const StateSpaceShape& shape = space.shape;
  const int64_t texts = slots.positions.size(0), rows = projected.size(0);
  const DType type = projected.dtype();
  const Projection parts = projection_of(projected, texts, shape);
  const Tensor own = tape.empty({rows, shape.channels()}, type, "state_space.convolved"),
               scanned = tape.empty({rows, shape.width()}, type, "state_space.scanned");
  tape.kernels().causal_conv_continued(
      {.x = parts.channels,
       .weight = conv_matrix(space.conv.value()),
       .bias = value_or_none(space.conv_bias),
       .positions = slots.positions,
       .block_table = slots.block_table,
       .block_size = slots.block_size,
       .tails = slots.tails,
       .out = columns_by_sequence(own, texts, 0, shape.channels())},
      tape.stream());
  const ScanInputs in = scan_inputs(own, texts, shape);
  tape.kernels().state_scan_continued(
      {.x = in.x,
       .dt = parts.dt,
       .b = in.b,
       .c = in.c,
       .numbers = numbers_of(space),
       .positions = slots.positions,
       .block_table = slots.block_table,
       .block_size = slots.block_size,
       .slots = slots.scan,
       .out = columns_by_sequence(scanned, texts, 0, shape.heads, shape.head_size)},
      tape.stream());
  tape.kernels().gated_norm(norm_args(tape, space, scanned, parts.z, out), tape.stream());
}

}  // namespace megatron::ops
