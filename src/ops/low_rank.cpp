// T tokens, R rows of a block's matrix a
#include "ops/low_rank.h"

#include <algorithm>
#include <utility>

#include "kernels/gemm_each.h"

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

// Columns of the product y that belong to the replaced rows of the table.
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

// out = x with the adapter's dropout. Kernels process groups of four channels; if the columns begin
// within a group, padding columns are put before them.
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

namespace {

// Products that adapters add. They are computed in the order `inner`, `scales`, `outer`,
// `replacing`.
struct Products {
  std::vector<kernels::GemmArgs> inner, replacing;
  std::vector<std::pair<double, Tensor>> scales;  // factors of the results of `inner`
  // Sets whose products write different columns: a block that adds to the same columns as an
  // earlier block of its adapter is in a later set.
  std::vector<std::vector<kernels::GemmArgs>> outer;
};

bool overlap(const LowRank::Part& a, const LowRank::Part& b) {
  return a.row < b.row + b.b.value().size(0) && b.row < a.row + a.b.value().size(0);
}

// Index in Products::outer of the set of each of an adapter's blocks.
std::vector<size_t> sets_of(const LowRank& adapter) {
  std::vector<size_t> sets;
  for (size_t i = 0; i < adapter.blocks.size(); ++i) {
    sets.push_back(0);
    for (size_t before = 0; before < i; ++before)
      for (const LowRank::Part& a : adapter.blocks[before].parts)
        for (const LowRank::Part& b : adapter.blocks[i].parts)
          if (overlap(a, b)) sets[i] = std::max(sets[i], sets[before] + 1);
  }
  return sets;
}

void list_products(Tape& tape, const AdaptedRows& rows, Products& products) {
  const auto& [adapter, x, y] = rows;
  const std::vector<size_t> sets = sets_of(*adapter);
  for (size_t i = 0; i < sets.size(); ++i) {
    const LowRank::Block& block = adapter->blocks[i];
    if (sets[i] >= products.outer.size()) products.outer.resize(sets[i] + 1);
    const Tensor& a = block.a.value();
    const Tensor inner_TR = tape.empty({x.size(0), a.size(0)}, a.dtype(), "low_rank.inner");
    products.inner.push_back({.a = x, .b = a, .out = inner_TR, .transpose_b = true});
    products.scales.emplace_back(block.scale, inner_TR);
    for (const LowRank::Part& part : block.parts)
      products.outer[sets[i]].push_back({.a = inner_of(part, inner_TR),
                                         .b = part.b.value(),
                                         .out = columns_of(part, y),
                                         .transpose_b = true,
                                         .beta = 1,
                                         .bias = scaled_bias(tape, part, block.scale)});
  }
  for (const ReplacedRows::Run& run : adapter->replaced.runs)
    products.replacing.push_back({.a = x,
                                  .b = adapter->replaced.values(run),
                                  .out = replaced_columns(run, y),
                                  .transpose_b = true});
}

void multiply(Tape& tape, const Products& products) {
  const kernels::Table& kernels = tape.kernels();
  Stream& stream = tape.stream();
  kernels::gemm_each(products.inner, kernels, stream);
  for (const auto& [factor, inner_TR] : products.scales) scale(kernels, factor, inner_TR, stream);
  for (const auto& set : products.outer) kernels::gemm_each(set, kernels, stream);
  kernels::gemm_each(products.replacing, kernels, stream);
}

}  // namespace

std::vector<Tensor> add_low_rank(Tape& tape, const LowRank& adapter, const Tensor& x,
                                 const Tensor& y) {
  std::vector<Tensor> inner;
  if (!tape.adapts() || adapter.has_magnitudes()) return inner;
  Products products;
  list_products(tape, {&adapter, x, y}, products);
  multiply(tape, products);
  for (auto& [factor, inner_TR] : products.scales) inner.push_back(std::move(inner_TR));
  return inner;
}

void add_low_rank(Tape& tape, std::span<const AdaptedRows> rows) {
  if (!tape.adapts()) return;
  Products products;
  for (const AdaptedRows& of_one : rows) list_products(tape, of_one, products);
  multiply(tape, products);
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
