// T tokens, R rows of a block's matrix a
#include "ops/low_rank.h"

namespace megatron::ops {
namespace {

// The columns of inner_TR that a part reads.
Tensor inner_of(const LowRank::Part& part, const Tensor& inner_TR) {
  return inner_TR.slice(1, part.first, part.b.value().size(1));
}

Tensor columns_of(const LowRank::Part& part, const Tensor& y) {
  return y.slice(1, part.row, part.b.value().size(0));
}

void scale(const kernels::Table& kernels, double factor, const Tensor& inner_TR, Stream& stream) {
  if (factor != 1) kernels.scale({.factor = factor, .x = inner_TR, .out = inner_TR}, stream);
}

// scale * bias of a part that adds it; undefined if there is none.
Tensor scaled_bias(Tape& tape, const LowRank::Part& part, double factor) {
  if (!part.bias || !part.adds_bias) return {};
  const Tensor& bias = part.bias.value();
  if (factor == 1) return bias;
  const Tensor scaled = tape.empty(bias.shape(), bias.dtype(), "low_rank.bias");
  tape.kernels().scale({.factor = factor, .x = bias, .out = scaled}, tape.stream());
  return scaled;
}

void add_bias_gradient(Tape& tape, const LowRank::Part& part, double factor, const Tensor& dy) {
  if (!part.bias) return;
  const GradSlot slot = tape.grad_slot(part.bias);
  if (!slot.out.defined()) return;
  const kernels::Table& kernels = tape.kernels();
  if (!part.adds_bias) {
    if (slot.beta == 0) kernels.fill({.out = slot.out, .value = 0}, tape.stream());
    return;
  }
  Tensor own = columns_of(part, dy);
  if (!own.is_contiguous()) {
    const Tensor strided = own;
    own = tape.empty(strided.shape(), strided.dtype(), "low_rank.dy");
    kernels.copy({.x = strided, .out = own}, tape.stream());
  }
  // The sum of this micro-batch alone is scaled.
  const Tensor sum = tape.empty(slot.out.shape(), slot.out.dtype(), "low_rank.bias, gradient");
  kernels.column_sum({.x = own, .out = {sum, 0}}, tape.stream());
  scale(kernels, factor, sum, tape.stream());
  if (slot.beta == 0) kernels.copy({.x = sum, .out = slot.out}, tape.stream());
  else kernels.add({.a = slot.out, .b = sum, .out = slot.out}, tape.stream());
}

// Columns of the product with the table's rows that others replace.
Tensor replaced_columns(const ReplacedRows::Run& run, const Tensor& y) {
  return y.slice(1, run.row, run.count);
}

// The replaced rows less those of the table in their place.
Tensor replacing_difference(const LowRank& adapter, Tape& tape, const ReplacedRows::Run& run) {
  const Tensor rows = adapter.replaced.values(run);
  const Tensor difference = tape.empty(rows.shape(), rows.dtype(), "replaced_rows.difference");
  tape.kernels().scale(
      {.factor = -1, .x = adapter.matrix.value().slice(0, run.row, run.count), .out = difference},
      tape.stream());
  tape.kernels().add({.a = difference, .b = rows, .out = difference}, tape.stream());
  return difference;
}

// out = x with the adapter's dropout. Kernels take groups of four channels, so that columns which
// begin within a group are dropped behind others.
void drop(const LowRank& adapter, Tape& tape, const Tensor& x, const Tensor& out) {
  const LowRank::Dropout& dropout = adapter.dropout;
  const BatchRows& batch = *tape.batch_rows();
  const int64_t before = dropout.first_channel % 4;
  kernels::DropoutArgs args{.mask = {.p = dropout.p,
                                     .seed = dropout.seed,
                                     .stream = dropout.stream,
                                     .rows = batch.tokens,
                                     .first_channel = dropout.first_channel - before},
                            .x = x,
                            .out = out};
  if (dropout.first_row) args.mask.rows.first = dropout.first_row(batch.rows);
  const kernels::Table& kernels = tape.kernels();
  if (before == 0) return kernels.dropout(args, tape.stream());
  const Tensor wide = tape.empty({x.size(0), before + x.size(1)}, x.dtype(), "low_rank.dropout");
  kernels.fill({.out = wide, .value = 0}, tape.stream());
  kernels.copy({.x = x, .out = wide.slice(1, before, x.size(1))}, tape.stream());
  args.x = args.out = wide;
  kernels.dropout(args, tape.stream());
  kernels.copy({.x = wide.slice(1, before, x.size(1)), .out = out}, tape.stream());
}

}  // namespace

bool drops(const LowRank& adapter, const Tape& tape) {
  return adapter && adapter.dropout.p > 0 && tape.adapts() && tape.batch_rows() != nullptr;
}

Tensor low_rank_input(const LowRank& adapter, Tape& tape, const Tensor& x) {
  if (!drops(adapter, tape)) return x;
  Tensor dropped = tape.empty(x.shape(), x.dtype(), "low_rank.input");
  drop(adapter, tape, x, dropped);
  return dropped;
}

LowRankInputGradient::LowRankInputGradient(const LowRank& adapter, Tape& tape, const Tensor& dx)
    : adapter_(adapter), tape_(tape), dx_(dx), sum_(dx) {
  if (!dx.defined() || !drops(adapter, tape)) return;
  sum_ = tape.empty(dx.shape(), dx.dtype(), "low_rank.input, gradient");
  tape.kernels().fill({.out = sum_, .value = 0}, tape.stream());
}

void LowRankInputGradient::finish() {
  if (!dx_.defined() || !drops(adapter_, tape_)) return;
  drop(adapter_, tape_, sum_, sum_);
  tape_.kernels().add({.a = dx_, .b = sum_, .out = dx_}, tape_.stream());
}

void for_each_weight(const LowRank& adapter, const std::function<void(const Weight&)>& f) {
  for (const LowRank::Block& block : adapter.blocks) {
    f(block.a);
    for (const LowRank::Part& part : block.parts) {
      f(part.b);
      if (part.bias) f(part.bias);
      if (part.magnitude) f(part.magnitude);
    }
  }
  if (adapter.replaced) f(adapter.replaced.rows);
}

std::vector<Tensor> add_low_rank(Tape& tape, const LowRank& adapter, const Tensor& x,
                                 const Tensor& y) {
  const kernels::Table& kernels = tape.kernels();
  std::vector<Tensor> inner;
  if (!tape.adapts() || adapter.has_magnitudes()) return inner;
  for (const LowRank::Block& block : adapter.blocks) {
    const Tensor& a = block.a.value();
    Tensor inner_TR = tape.empty({x.size(0), a.size(0)}, a.dtype(), "low_rank.inner");
    kernels.gemm({.a = x, .b = a, .out = inner_TR, .transpose_b = true}, tape.stream());
    scale(kernels, block.scale, inner_TR, tape.stream());
    for (const LowRank::Part& part : block.parts)
      kernels.gemm({.a = inner_of(part, inner_TR),
                    .b = part.b.value(),
                    .out = columns_of(part, y),
                    .transpose_b = true,
                    .beta = 1,
                    .bias = scaled_bias(tape, part, block.scale)},
                   tape.stream());
    inner.push_back(std::move(inner_TR));
  }
  for (const ReplacedRows::Run& run : adapter.replaced.runs)
    kernels.gemm({.a = x,
                  .b = adapter.replaced.values(run),
                  .out = replaced_columns(run, y),
                  .transpose_b = true},
                 tape.stream());
  return inner;
}

std::vector<Tensor> low_rank_inner_gradients(const LowRank& adapter, Tape& tape, const Tensor& dy) {
  const kernels::Table& kernels = tape.kernels();
  std::vector<Tensor> gradients;
  for (const LowRank::Block& block : adapter.blocks) {
    const Tensor& a = block.a.value();
    Tensor gradient_TR = tape.empty({dy.size(0), a.size(0)}, a.dtype(), "low_rank.inner, gradient");
    for (const LowRank::Part& part : block.parts)
      kernels.gemm(
          {.a = columns_of(part, dy), .b = part.b.value(), .out = inner_of(part, gradient_TR)},
          tape.stream());
    scale(kernels, block.scale, gradient_TR, tape.stream());
    gradients.push_back(std::move(gradient_TR));
  }
  for (const ReplacedRows::Run& run : adapter.replaced.runs) {
    const Tensor columns = replaced_columns(run, dy);
    gradients.push_back(tape.empty(columns.shape(), columns.dtype(), "replaced_rows.dy"));
    kernels.copy({.x = columns, .out = gradients.back()}, tape.stream());
  }
  return gradients;
}

void add_low_rank_input_gradient(const LowRank& adapter, Tape& tape,
                                 std::span<const Tensor> inner_gradients, const Tensor& dx) {
  const size_t blocks = adapter.blocks.size();
  for (size_t i = 0; i < inner_gradients.size(); ++i)
    tape.kernels().gemm(
        {.a = inner_gradients[i],
         .b = i < blocks ? adapter.blocks[i].a.value()
                         : replacing_difference(adapter, tape, adapter.replaced.runs[i - blocks]),
         .out = dx,
         .beta = 1},
        tape.stream());
}

void add_low_rank_weight_gradients(const LowRank& adapter, Tape& tape,
                                   std::span<const Tensor> inner,
                                   std::span<const Tensor> inner_gradients, const Tensor& dy,
                                   const Tensor& x) {
  const auto add = [&](const Weight& weight, const Tensor& rows, const Tensor& columns) {
    if (const GradSlot slot = tape.grad_slot(weight); slot.out.defined())
      tape.kernels().gemm(
          {.a = rows, .b = columns, .out = slot.out, .transpose_a = true, .beta = slot.beta},
          tape.stream());
  };
  for (size_t i = 0; i < adapter.blocks.size(); ++i) {
    const LowRank::Block& block = adapter.blocks[i];
    for (const LowRank::Part& part : block.parts) {
      add(part.b, columns_of(part, dy), inner_of(part, inner[i]));
      add_bias_gradient(tape, part, block.scale, dy);
    }
    add(block.a, inner_gradients[i], x);
  }
  if (!adapter.replaced) return;
  size_t next = adapter.blocks.size();
  add_row_gradients(adapter.replaced, tape, [&](const Tensor& sum, const auto&) {
    tape.kernels().gemm(
        {.a = inner_gradients[next++], .b = x, .out = sum, .transpose_a = true, .beta = 1},
        tape.stream());
  });
}

void add_low_rank_gradients(const LowRank& adapter, Tape& tape, std::span<const Tensor> inner,
                            const Tensor& dy, const Tensor& x, const Tensor& dx) {
  if (!adapter) return;
  const std::vector<Tensor> gradients = low_rank_inner_gradients(adapter, tape, dy);
  if (dx.defined()) add_low_rank_input_gradient(adapter, tape, gradients, dx);
  add_low_rank_weight_gradients(adapter, tape, inner, gradients, dy, x);
}

std::vector<Tensor> add_adapter(const LowRank& adapter, Tape& tape, const Tensor& w,
                                const Tensor& x, const Tensor& y) {
  if (!adapter || !tape.adapts()) return {};
  const bool dropped = drops(adapter, tape);
  if (adapter.has_magnitudes() && !dropped) return {};
  const Tensor input = low_rank_input(adapter, tape, x);
  if (!adapter.has_magnitudes()) return add_low_rank(tape, adapter, input, y);
  tape.kernels().gemm({.a = input,
                       .b = decomposed_difference(adapter, tape, w),
                       .out = y,
                       .transpose_b = true,
                       .beta = 1},
                      tape.stream());
  return {};
}

LowRankNode::LowRankNode(Node& node, LowRank adapter, std::vector<Tensor> inner)
    : adapter_(std::move(adapter)), saved_(node.saved.size()) {
  for_each_weight(adapter_, [&](const Weight& weight) { node.weights.push_back(weight); });
  for (Tensor& tensor : inner) node.saved.emplace_back(std::move(tensor));
}

const std::vector<Tensor>& LowRankNode::inner_gradients(Backward& backward,
                                                        const Tensor& dy) const {
  if (gradients_->empty()) *gradients_ = low_rank_inner_gradients(adapter_, backward.tape(), dy);
  return *gradients_;
}

Tensor LowRankNode::matrix(Backward& backward, const Tensor& w) const {
  return adapted_matrix(adapter_, backward.tape(), w);
}

void LowRankNode::input_gradient(Backward& backward, const Tensor& w, const Tensor& dy,
                                 const Tensor& dx) const {
  Tape& tape = backward.tape();
  if (!adapter_ || (adapter_.has_magnitudes() && !drops(adapter_, tape))) return;
  // Weight gradients may run when parameters have been released.
  if (!dx.defined() && !adapter_.has_magnitudes()) inner_gradients(backward, dy);
  if (!dx.defined()) return;
  LowRankInputGradient gradient(adapter_, tape, dx);
  if (adapter_.has_magnitudes()) {
    tape.kernels().gemm(
        {.a = dy, .b = decomposed_difference(adapter_, tape, w), .out = gradient.sum()},
        tape.stream());
  } else {
    add_low_rank_input_gradient(adapter_, tape, inner_gradients(backward, dy), gradient.sum());
  }
  gradient.finish();
}

void LowRankNode::weight_gradients(Backward& backward, const Tensor& w, const Tensor& dy,
                                   const Tensor& x) const {
  if (!adapter_) return;
  const Tensor input = low_rank_input(adapter_, backward.tape(), x);
  if (adapter_.has_magnitudes())
    return add_decomposed_gradients(adapter_, backward.tape(), w, dy, input);
  std::vector<Tensor> inner;
  for (size_t i = 0; i < adapter_.blocks.size(); ++i) inner.push_back(backward.saved(saved_ + i));
  add_low_rank_weight_gradients(adapter_, backward.tape(), inner, inner_gradients(backward, dy), dy,
                                input);
  gradients_->clear();
}

}  // namespace megatron::ops
