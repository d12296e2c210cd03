#include "ops/state_space.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "ops/state_space_norm.h"

namespace megatron::ops {
namespace {

using kernels::GateOrder;

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
// Columns of [B,S,C] as [B,S,heads,size].
Tensor columns_as_heads(const Tensor& x, int64_t first, int64_t heads, int64_t size) {
  const std::array<int64_t, 4> strides = {x.stride(0), x.stride(1), size, 1};
  return x.slice(2, first, heads * size).as_strided({x.size(0), x.size(1), heads, size}, strides);
}

// As [C,K]: on disk there is a dim of one channel between them.
Tensor conv_matrix(const Tensor& weight) {
  return weight.view({weight.size(0), weight.elements() / std::max<int64_t>(weight.size(0), 1)});
}

Tensor value_or_none(const Weight& weight) { return weight ? weight.value() : Tensor(); }

enum WeightIndex : size_t { kConv, kALog, kDtBias, kD, kOptional };

struct StateSpaceAttributes {
  StateSpaceShape shape;
  int64_t sequences = 1;
  double min_step = 0, max_step = 0;
  GatedNorm norm;  // without its weight
  bool has_bias = false;
  std::shared_ptr<const StateSpaceExchange> exchange;

  // Indices of the weights that not every node has.
  size_t bias_index() const { return kOptional; }
  size_t norm_index() const { return kOptional + (has_bias ? 1 : 0); }
  GatedNorm norm_with(const Tensor& weight) const {
    GatedNorm with = norm;
    with.weight = weight;
    return with;
  }
};

GatedNorm norm_of(const StateSpace& space) {
  const bool weighted = space.order != GateOrder::gate_only;
  return {.order = space.order,
          .groups = weighted ? space.shape.groups : 1,
          .sharing = space.shape.sharing,
          .eps = space.eps,
          .weight = weighted ? space.norm.value() : Tensor()};
}

// The values of weights, or their gradients, of the heads that a rank scans.
struct ScanWeights {
  Tensor conv, conv_bias;  // [C,K]; [C] or none
  Tensor a_log, dt_bias, d;
};

// The part of a state space that this rank scans.
class ScanPart {
 public:
  ScanPart(const StateSpaceShape& shape, const StateSpaceExchange* exchange) : all_(shape) {
    if (exchange == nullptr) return;
    const int ranks = exchange->head_ranks();
    if (ranks == 1) return;
    divided_ = true;
    own_.heads = shape.heads / ranks;
    own_.groups = std::max<int64_t>(shape.groups / ranks, 1);
    first_head_ = exchange->head_rank() * own_.heads;
    first_group_ = exchange->head_rank() * shape.groups / ranks;
  }

  const StateSpaceShape& shape() const { return own_; }
  // The columns of a whole projection, without z.
  std::array<StateSpaceExchange::Columns, 4> columns() const {
    const int64_t of_group = all_.states / all_.sharing;
    return {{{all_.heads, all_.head_size},
             {all_.groups, of_group},
             {all_.groups, of_group},
             {all_.heads, 1}}};
  }

  // This part's elements of a tensor [H] with one number per head.
  Tensor numbers(const Tensor& of_all) const {
    return divided_ ? of_all.slice(0, first_head_, own_.heads) : of_all;
  }
  // Channels [C,...] of the part: a copy if it is not all of them.
  Tensor channels(Tape& tape, const Tensor& of_all) const {
    if (!divided_ || !of_all.defined()) return of_all;
    const Tensor part = empty_part(tape, of_all, "state_space.channels");
    for_each_range([&](int64_t from, int64_t to, int64_t size) {
      tape.kernels().copy({.x = of_all.slice(0, from, size), .out = part.slice(0, to, size)},
                          tape.stream());
    });
    return part;
  }

  // Where a kernel adds the gradient of numbers of the part.
  GradSlot numbers(Tape& tape, const GradSlot& of_all) const {
    if (!divided_ || !of_all.out.defined()) return of_all;
    clear(tape, of_all);
    return {numbers(of_all.out), 1};
  }
  // Where a kernel writes the gradient of channels of the part, which add_channels() then adds.
  GradSlot channels(Tape& tape, const GradSlot& of_all) const {
    if (!divided_ || !of_all.out.defined()) return of_all;
    return {empty_part(tape, of_all.out, "state_space.dchannels"), 0};
  }
  void add_channels(Tape& tape, const GradSlot& part, const GradSlot& of_all) const {
    if (!divided_ || !of_all.out.defined()) return;
    clear(tape, of_all);
    for_each_range([&](int64_t to, int64_t from, int64_t size) {
      const Tensor sum = of_all.out.slice(0, to, size);
      tape.kernels().add({.a = sum, .b = part.out.slice(0, from, size), .out = sum}, tape.stream());
    });
  }

 private:
  // Calls f(first of all, first of the part, size) for x, b and c.
  template <class F>
  void for_each_range(F f) const {
    const int64_t of_group = all_.states / all_.sharing, group = own_.groups * of_group,
                  first = first_group_ * of_group;
    f(first_head_ * all_.head_size, 0, own_.width());
    f(all_.width() + first, own_.width(), group);
    f(all_.width() + all_.group_columns() + first, own_.width() + group, group);
  }
  Tensor empty_part(Tape& tape, const Tensor& of_all, std::string_view label) const {
    Shape shape = of_all.shape();
    shape.set(0, own_.channels());
    return tape.empty(shape, of_all.dtype(), label);
  }
  static void clear(Tape& tape, const GradSlot& slot) {
    if (slot.beta == 0) tape.kernels().fill({.out = slot.out, .value = 0}, tape.stream());
  }

  StateSpaceShape all_, own_ = all_;
  bool divided_ = false;
  int64_t first_head_ = 0, first_group_ = 0;
};

// The sequences that a rank scans: [x | b | c | dt] of the heads and tokens that it scans. Without
// an exchange, these columns of the projection.
struct ScanRows {
  StateSpaceShape shape;
  int64_t sequences;
  Tensor rows;  // [T, C + H]
  Tensor starts;

  Tensor channels() const { return columns_by_sequence(rows, sequences, 0, shape.channels()); }
  Tensor dt() const { return columns_by_sequence(rows, sequences, shape.channels(), shape.heads); }
};

Tensor without_gates(const Tensor& projected, const StateSpaceShape& shape) {
  return projected.slice(1, shape.width(), shape.channels() + shape.heads);
}

int64_t halo_of(const StateSpaceExchange* exchange) {
  return exchange == nullptr || exchange->runs() == 1 ? 0 : exchange->halo();
}

// starts: of the tokens that the batch has here. rows: if heads are exchanged for tokens what was
// received, else the projection without its gates.
ScanRows scan_rows(const ScanPart& part, const StateSpaceExchange* exchange, const Tensor& rows,
                   int64_t sequences, const Tensor& starts) {
  ScanRows made{.shape = part.shape(), .sequences = sequences, .rows = rows, .starts = starts};
  if (exchange != nullptr && exchange->head_ranks() > 1) made.starts = exchange->whole_starts();
  if (halo_of(exchange) > 0) {
    made.sequences *= exchange->runs();
    made.starts = exchange->run_starts();
  }
  if (made.starts.defined())
    made.starts = made.starts.view(
        {made.sequences, made.starts.elements() / std::max<int64_t>(made.sequences, 1)});
  return made;
}

// The convolution's inputs or outputs [B,S,C], or their gradients, with what is before each run.
struct Convolved {
  Tensor all;  // [B, halo + S, C]
  int64_t halo;

  Tensor own() const { return all.slice(1, halo, all.size(1) - halo); }
  Tensor before(int64_t count) const { return all.slice(1, halo - count, count); }
};

Convolved empty_convolved(Tape& tape, const ScanRows& in, int64_t halo, std::string_view label) {
  const Tensor own = in.channels();
  return {tape.empty({own.size(0), halo + own.size(1), own.size(2)}, own.dtype(), label), halo};
}

// The inputs of the convolution. before: [runs,K-1,C], of runs.
Convolved conv_inputs(Tape& tape, const ScanRows& in, const StateSpaceExchange* exchange,
                      const Tensor& before) {
  const int64_t halo = halo_of(exchange);
  if (halo == 0) return {in.channels(), 0};
  Convolved x = empty_convolved(tape, in, halo, "state_space.inputs");
  const kernels::Table& kernels = tape.kernels();
  if (halo > before.size(1)) kernels.fill({.out = x.all, .value = 0}, tape.stream());
  kernels.copy({.x = before, .out = x.before(before.size(1))}, tape.stream());
  kernels.copy({.x = in.channels(), .out = x.own()}, tape.stream());
  return x;
}

Tensor conv_starts(const ScanRows& in, const StateSpaceExchange* exchange) {
  return halo_of(exchange) > 0 ? exchange->extended_starts() : in.starts;
}

Convolved convolve(Tape& tape, const ScanRows& in, const Convolved& x, const ScanWeights& w,
                   const StateSpaceExchange* exchange) {
  const Convolved out = empty_convolved(tape, in, x.halo, "state_space.convolved");
  tape.kernels().causal_conv({.x = x.all,
                              .weight = w.conv,
                              .bias = w.conv_bias,
                              .starts = conv_starts(in, exchange),
                              .out = out.all},
                             tape.stream());
  return out;
}

// What the convolution gives, as the inputs of the scan.
struct ScanInputs {
  Tensor x, b, c;
};
// group: b and c [T, 2 N] of a shared group; undefined: they are in `convolved`.
ScanInputs scan_inputs(const Tensor& convolved, const StateSpaceShape& shape, const Tensor& group) {
  const int64_t width = shape.width(), columns = shape.group_columns();
  const Tensor x = columns_as_heads(convolved, 0, shape.heads, shape.head_size);
  if (group.defined())
    return {.x = x,
            .b = columns_by_sequence(group, x.size(0), 0, 1, shape.states),
            .c = columns_by_sequence(group, x.size(0), shape.states, 1, shape.states)};
  return {.x = x,
          .b = columns_as_heads(convolved, width, shape.groups, shape.states),
          .c = columns_as_heads(convolved, width + columns, shape.groups, shape.states)};
}

// Columns of b and c of [B,S,C], as [B S, ...] rows of their own.
Tensor group_part(Tape& tape, const Tensor& convolved, const StateSpaceShape& shape) {
  const int64_t columns = 2 * shape.group_columns();
  const Tensor part = tape.empty({convolved.size(0), convolved.size(1), columns}, convolved.dtype(),
                                 "state_space.group");
  tape.kernels().copy({.x = convolved.slice(2, shape.width(), columns), .out = part},
                      tape.stream());
  return part.view({convolved.size(0) * convolved.size(1), columns});
}
Tensor shared_group(Tape& tape, const Tensor& convolved, const StateSpaceShape& shape,
                    const StateSpaceExchange* exchange) {
  if (shape.sharing == 1) return {};
  return exchange->whole_group(group_part(tape, convolved, shape), tape);
}

// The weights of the heads that a rank scans.
ScanWeights weights_of(Tape& tape, const ScanPart& part, const Tensor& conv, const Tensor& bias,
                       const Tensor& a_log, const Tensor& dt_bias, const Tensor& d) {
  return {.conv = part.channels(tape, conv_matrix(conv)),
          .conv_bias = part.channels(tape, bias),
          .a_log = part.numbers(a_log),
          .dt_bias = part.numbers(dt_bias),
          .d = part.numbers(d)};
}
kernels::StateScanNumbers numbers_of(const ScanWeights& w, double min_step, double max_step) {
  return {
      .a_log = w.a_log, .dt_bias = w.dt_bias, .d = w.d, .min_step = min_step, .max_step = max_step};
}

// The state before each run, or the gradient of that after it. x, b: of the scan, or dout and c.
Tensor handed_on(Tape& tape, const ScanRows& in, const Tensor& x, const Tensor& b,
                 const kernels::StateScanNumbers& numbers, const StateSpaceExchange* exchange,
                 bool gradient) {
  if (halo_of(exchange) == 0) return {};
  const DType wide = kernels::accumulator(x.dtype());
  const Tensor state = tape.empty({x.size(0), x.size(2), x.size(3), b.size(3)}, wide,
                                  "state_space.state"),
               decay = tape.empty({x.size(0), x.size(2)}, wide, "state_space.decay");
  tape.kernels().state_carry({.x = x,
                              .dt = in.dt(),
                              .b = b,
                              .numbers = numbers,
                              .starts = in.starts,
                              .gradient = gradient,
                              .state = state,
                              .decay = decay},
                             tape.stream());
  return exchange->handed_on(state, decay, gradient, tape);
}

// saved: projected; the scan's output; rstd and the middle of the norm; starts; what was received
// for heads; tokens and states before runs.
enum SavedIndex : size_t {
  kProjected,
  kScanned,
  kRstd,
  kMiddle,
  kStarts,
  kRows,
  kBefore,
  kInitial
};

// Columns of a token whose gradient is that of z, and the other ones.
struct Gradients {
  Tensor projected, z, rest;
};
Gradients gradients_of(Backward& backward, const StateSpaceShape& shape) {
  const Tensor& projected = backward.saved(kProjected);
  const Tensor all = backward.empty(projected.shape(), projected.dtype(), "state_space.dprojected");
  return {all, all.slice(1, 0, shape.width()), without_gates(all, shape)};
}

// The gradient of the scan's output, [B,S,H,P] of what this rank scans.
Tensor scanned_gradient(Backward& backward, const StateSpaceAttributes& a, const ScanRows& in,
                        const Gradients& gradients) {
  Tape& tape = backward.tape();
  const bool weighted = a.norm.order != GateOrder::gate_only;
  const Tensor& scanned = backward.saved(kScanned);
  Tensor dscanned = backward.empty(scanned.shape(), scanned.dtype(), "state_space.dscanned");
  gated_norm_backward(
      a.norm_with(weighted ? backward.weight(a.norm_index()).value() : Tensor()), a.exchange.get(),
      scanned, backward.saved(kProjected).slice(1, 0, a.shape.width()),
      {.rstd = backward.saved(kRstd), .middle = backward.saved(kMiddle)}, backward.gradient(0),
      dscanned, gradients.z, weighted ? backward.grad_slot(a.norm_index()) : GradSlot{}, tape);
  if (a.exchange != nullptr && a.exchange->head_ranks() > 1)
    dscanned = a.exchange->to_heads(
        dscanned, std::array{StateSpaceExchange::Columns{a.shape.heads, a.shape.head_size}}, tape);
  return columns_by_sequence(dscanned, in.sequences, 0, in.shape.heads, in.shape.head_size);
}

// Backward of the convolution: from the gradients of its outputs to those of the rows' channels.
void conv_backward(Backward& backward, const StateSpaceAttributes& a, const ScanPart& part,
                   const ScanRows& in, const Convolved& x, const ScanWeights& w,
                   const Convolved& dout, const Tensor& drows) {
  Tape& tape = backward.tape();
  const StateSpaceExchange* const exchange = a.exchange.get();
  GradSlot dconv = backward.grad_slot(kConv),
           dbias = a.has_bias ? backward.grad_slot(a.bias_index()) : GradSlot{};
  if (dconv.out.defined()) dconv.out = conv_matrix(dconv.out);
  const GradSlot conv_part = part.channels(tape, dconv), bias_part = part.channels(tape, dbias);
  const Tensor dchannels = columns_by_sequence(drows, in.sequences, 0, in.shape.channels());
  const Convolved dx = x.halo == 0 ? Convolved{dchannels, 0}
                                   : empty_convolved(tape, in, x.halo, "state_space.dinputs");
  tape.kernels().causal_conv_backward({.x = x.all,
                                       .weight = w.conv,
                                       .bias = w.conv_bias,
                                       .starts = conv_starts(in, exchange),
                                       .dout = dout.all,
                                       .dx = dx.all,
                                       .dweight = conv_part,
                                       .dbias = bias_part},
                                      tape.stream());
  part.add_channels(tape, conv_part, dconv);
  part.add_channels(tape, bias_part, dbias);
  if (x.halo == 0) return;
  exchange->give_back(dx.before(w.conv.size(1) - 1), dx.own(), tape);
  tape.kernels().copy({.x = dx.own(), .out = dchannels}, tape.stream());
}

void state_space_dgrad(Backward& backward) {
  const auto& a = backward.attributes<StateSpaceAttributes>();
  Tape& tape = backward.tape();
  const StateSpaceExchange* const exchange = a.exchange.get();
  const ScanPart part(a.shape, exchange);
  const bool divided = exchange != nullptr && exchange->head_ranks() > 1;
  const ScanRows in = scan_rows(
      part, exchange,
      divided ? backward.saved(kRows) : without_gates(backward.saved(kProjected), a.shape),
      a.sequences, backward.saved(kStarts));
  const Gradients gradients = gradients_of(backward, a.shape);
  const Tensor dscanned = scanned_gradient(backward, a, in, gradients);

  const ScanWeights w = weights_of(tape, part, backward.weight(kConv).value(),
                                   a.has_bias ? backward.weight(a.bias_index()).value() : Tensor(),
                                   backward.weight(kALog).value(), backward.weight(kDtBias).value(),
                                   backward.weight(kD).value());
  const kernels::StateScanNumbers numbers = numbers_of(w, a.min_step, a.max_step);
  const Convolved x = conv_inputs(tape, in, exchange, backward.saved(kBefore)),
                  out = convolve(tape, in, x, w, exchange),
                  dout = empty_convolved(tape, in, x.halo, "state_space.dconvolved");
  if (x.halo > 0) tape.kernels().fill({.out = dout.all, .value = 0}, tape.stream());
  const Tensor group = shared_group(tape, out.own(), in.shape, exchange);
  const Tensor dgroup =
      group.defined() ? tape.empty(group.shape(), group.dtype(), "state_space.dgroup") : Tensor();
  const ScanInputs of = scan_inputs(out.own(), in.shape, group),
                   dof = scan_inputs(dout.own(), in.shape, dgroup);
  const Tensor drows =
      divided ? tape.empty(in.rows.shape(), in.rows.dtype(), "state_space.drows") : gradients.rest;
  tape.kernels().state_scan_backward(
      {.x = of.x,
       .dt = in.dt(),
       .b = of.b,
       .c = of.c,
       .numbers = numbers,
       .starts = in.starts,
       .initial = backward.saved(kInitial),
       .dout = dscanned,
       .dfinal = handed_on(tape, in, dscanned, of.c, numbers, exchange, true),
       .dx = dof.x,
       .ddt = columns_by_sequence(drows, in.sequences, in.shape.channels(), in.shape.heads),
       .db = dof.b,
       .dc = dof.c,
       .da_log = part.numbers(tape, backward.grad_slot(kALog)),
       .ddt_bias = part.numbers(tape, backward.grad_slot(kDtBias)),
       .dd = part.numbers(tape, backward.grad_slot(kD))},
      tape.stream());
  if (group.defined()) {
    const Tensor own = exchange->part_of_group(dgroup, tape), to = dout.own();
    tape.kernels().copy({.x = own.view({to.size(0), to.size(1), own.size(1)}),
                         .out = to.slice(2, in.shape.width(), own.size(1))},
                        tape.stream());
  }
  conv_backward(backward, a, part, in, x, w, dout, drows);
  if (!backward.needs(0)) return;
  if (divided)
    tape.kernels().copy(
        {.x = exchange->to_tokens(drows, part.columns(), tape), .out = gradients.rest},
        tape.stream());
  backward.set(0, gradients.projected);
}

}  // namespace

Var state_space(Tape& tape, const Var& projected, int64_t sequences, const StateSpace& space,
                const Tensor& starts, std::shared_ptr<const StateSpaceExchange> sharing) {
  const StateSpaceShape& shape = space.shape;
  const StateSpaceExchange* const exchange = sharing.get();
  const ScanPart part(shape, exchange);
  const bool divided = exchange != nullptr && exchange->head_ranks() > 1;
  MG_ASSERT(projected.value.size(1) == shape.projected());
  const Tensor inner = without_gates(projected.value, shape);
  const ScanRows in =
      scan_rows(part, exchange, divided ? exchange->to_heads(inner, part.columns(), tape) : inner,
                sequences, starts);
  const DType type = projected.value.dtype();
  Tensor scanned = tape.empty({in.rows.size(0), in.shape.width()}, type, "state_space.scanned");
  Tensor before, initial;
  {
    const ScanWeights w = weights_of(tape, part, space.conv.value(), value_or_none(space.conv_bias),
                                     space.a_log.value(), space.dt_bias.value(), space.d.value());
    const kernels::StateScanNumbers numbers = numbers_of(w, space.min_step, space.max_step);
    if (halo_of(exchange) > 0)
      before = exchange->tokens_before(in.channels(), w.conv.size(1) - 1, tape);
    const Tensor own =
        convolve(tape, in, conv_inputs(tape, in, exchange, before), w, exchange).own();
    const ScanInputs of = scan_inputs(own, in.shape, shared_group(tape, own, in.shape, exchange));
    initial = handed_on(tape, in, of.x, of.b, numbers, exchange, false);
    tape.kernels().state_scan(
        {.x = of.x,
         .dt = in.dt(),
         .b = of.b,
         .c = of.c,
         .numbers = numbers,
         .starts = in.starts,
         .initial = initial,
         .out = columns_by_sequence(scanned, in.sequences, 0, in.shape.heads, in.shape.head_size)},
        tape.stream());
  }
  if (divided)
    scanned = exchange->to_tokens(
        scanned, std::array{StateSpaceExchange::Columns{shape.heads, shape.head_size}}, tape);
  const Tensor out = tape.empty({scanned.size(0), shape.width()}, type, "state_space");
  GatedNorm norm = norm_of(space);
  const GatedNormSaved saved =
      gated_norm(norm, exchange, scanned, projected.value.slice(1, 0, shape.width()), out, tape);
  norm.weight = {};

  Node node{.name = "state_space",
            .inputs = {projected.id},
            .saved = {projected.value, scanned, saved.rstd, saved.middle, starts,
                      divided ? in.rows : Tensor(), before, initial},
            .weights = {space.conv, space.a_log, space.dt_bias, space.d},
            .dgrad = state_space_dgrad};
  if (space.conv_bias) node.weights.push_back(space.conv_bias);
  if (space.norm) node.weights.push_back(space.norm);
  node.attributes = StateSpaceAttributes{.shape = shape,
                                         .sequences = sequences,
                                         .min_step = space.min_step,
                                         .max_step = space.max_step,
                                         .norm = std::move(norm),
                                         .has_bias = static_cast<bool>(space.conv_bias),
                                         .exchange = std::move(sharing)};
  return tape.record_one(std::move(node), out);
}

void continue_state_space(const Tensor& projected, const StateSpace& space,
                          const StateSpaceSlots& slots, const Tensor& out, Tape& tape,
                          const StateSpaceExchange* exchange) {
  MG_ASSERT(!tape.recording());
  const StateSpaceShape& shape = space.shape;
  const int64_t texts = slots.positions.size(0), rows = projected.size(0);
  const DType type = projected.dtype();
  const ScanRows in{
      .shape = shape, .sequences = texts, .rows = without_gates(projected, shape), .starts = {}};
  const Convolved own = empty_convolved(tape, in, 0, "state_space.convolved");
  const Tensor scanned = tape.empty({rows, shape.width()}, type, "state_space.scanned");
  tape.kernels().causal_conv_continued({.x = in.channels(),
                                        .weight = conv_matrix(space.conv.value()),
                                        .bias = value_or_none(space.conv_bias),
                                        .positions = slots.positions,
                                        .block_table = slots.block_table,
                                        .block_size = slots.block_size,
                                        .tails = slots.tails,
                                        .out = own.all},
                                       tape.stream());
  const ScanInputs of = scan_inputs(own.all, shape, shared_group(tape, own.all, shape, exchange));
  tape.kernels().state_scan_continued(
      {.x = of.x,
       .dt = in.dt(),
       .b = of.b,
       .c = of.c,
       .numbers = {.a_log = space.a_log.value(),
                   .dt_bias = space.dt_bias.value(),
                   .d = space.d.value(),
                   .min_step = space.min_step,
                   .max_step = space.max_step},
       .positions = slots.positions,
       .block_table = slots.block_table,
       .block_size = slots.block_size,
       .slots = slots.scan,
       .out = columns_by_sequence(scanned, texts, 0, shape.heads, shape.head_size)},
      tape.stream());
  gated_norm(norm_of(space), exchange, scanned, projected.slice(1, 0, shape.width()), out, tape);
}

}  // namespace megatron::ops
