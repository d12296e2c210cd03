#include "parallel/feed_forward.h"

#include <algorithm>

#include "base/divide.h"
#include "ops/linear.h"
#include "parallel/column_input.h"
#include "parallel/linear.h"

namespace megatron::parallel {
namespace {

struct Attributes {
  FeedForward block;  // down_bias: only if this node adds it
  ColumnInput input;
};

struct Range {
  int64_t begin, size;
};

// Calls f with consecutive ranges of [0, total), at most `count`, all of one size, a multiple of
// `unit`, but for a smaller last one.
template <class F>
void for_each_part(int64_t total, int64_t count, int64_t unit, F&& f) {
  const int64_t size = round_up(ceil_div(total, count), unit);
  for (int64_t begin = 0; begin < total; begin += size)
    f(Range{begin, std::min(size, total - begin)});
}

// A slice of the width: of the outputs of `up`, in its gate as well, and of the inputs of `down`.
class Part {
 public:
  Part(const FeedForward& block, Range width, Tape& tape)
      : block_(block),
        kernels_(tape.kernels()),
        tape_(tape),
        width_(width),
        whole_(block.down.value().size(1)) {}

  int64_t columns() const { return pieces() * width_.size; }
  Tensor down() const { return block_.down.value().slice(1, width_.begin, width_.size); }
  // Calls f with each run of rows of `up` (the gate's, then the others), and its first column among
  // those of v.
  template <class F>
  void for_each_piece(F&& f) const {
    for (int64_t i = 0; i < pieces(); ++i)
      f(Range{i * whole_ + width_.begin, width_.size}, i * width_.size);
  }

  // v = up x + bias, and y = f(v). Only those are computed that are not null.
  void forward(const Tensor& x, Tensor* v, Tensor* y) const {
    const int64_t rows = x.size(0);
    Tensor sums = v != nullptr || !fused() ? empty({rows, columns()}, "column_linear.y") : Tensor();
    if (y != nullptr) *y = empty({rows, width_.size}, "activation");
    for_each_piece([&](Range of, int64_t column) {
      kernels::GemmArgs call{.a = x,
                             .b = block_.up.value().slice(0, of.begin, of.size),
                             .out = sums.defined() ? sums.slice(1, column, of.size) : *y,
                             .transpose_b = true};
      if (block_.up_bias) call.bias = block_.up_bias.value().slice(0, of.begin, of.size);
      if (fused() && y != nullptr) {
        call.epilogue = kernels::Epilogue::gelu;
        call.aux = sums;
        call.out = *y;
      }
      kernels_.gemm(call, tape_.stream());
    });
    if (!fused() && y != nullptr)
      kernels_.activation({.function = block_.activation,
                           .gated = block_.gated,
                           .x = sums,
                           .out = *y,
                           .clamp = block_.clamp,
                           .up_offset = block_.up_offset},
                          tape_.stream());
    if (v != nullptr) *v = sums;
  }

  // The gradient of v.
  Tensor gradient(const Tensor& v, const Tensor& dout) const {
    Tensor dy = empty({v.size(0), width_.size}, "linear.dx");
    if (fused()) {
      kernels_.gemm({.a = dout,
                     .b = down(),
                     .out = dy,
                     .epilogue = kernels::Epilogue::gelu_gradient,
                     .aux = v},
                    tape_.stream());
      return dy;
    }
    kernels_.gemm({.a = dout, .b = down(), .out = dy}, tape_.stream());
    Tensor dv = empty(v.shape(), "activation.dx");
    kernels_.activation_backward({.function = block_.activation,
                                  .gated = block_.gated,
                                  .x = v,
                                  .dout = dy,
                                  .dx = dv,
                                  .clamp = block_.clamp,
                                  .up_offset = block_.up_offset},
                                 tape_.stream());
    return dv;
  }

 private:
  int64_t pieces() const { return block_.gated ? 2 : 1; }
  // The activation belongs to the products.
  bool fused() const {
    return block_.activation == kernels::Activation::gelu_tanh && !block_.gated;
  }
  Tensor empty(Shape shape, std::string_view label) const {
    return tape_.empty(shape, block_.up.value().dtype(), label);
  }

  const FeedForward& block_;
  const kernels::Table& kernels_;
  Tape& tape_;
  Range width_;
  int64_t whole_;
};

Range width_of(const FeedForward& block) { return {0, block.down.value().size(1)}; }

void dgrad(Backward& backward) {
  const auto& [block, input] = backward.attributes<Attributes>();
  if (!backward.needs(0)) return;
  const Tensor x = input.gathered(backward), &dout = backward.gradient(0), &w = block.up.value();
  const Part whole(block, width_of(block), backward.tape());
  const Tensor dx = input.partial_gradient(backward, x.shape(), w.dtype());
  for_each_part(x.size(0), block.chunks, 1, [&](Range rows) {
    Tensor v;
    whole.forward(x.slice(0, rows.begin, rows.size), &v, nullptr);
    const Tensor dv = whole.gradient(v, dout.slice(0, rows.begin, rows.size));
    v = {};
    backward.kernels().gemm({.a = dv, .b = w, .out = dx.slice(0, rows.begin, rows.size)},
                            backward.stream());
  });
  if (backward.part() == BackwardPart::input) input.release();
  input.begin_sum(backward, dx);
}

// Adds the sums over the rows of dv to the gradient of up's bias.
void add_bias_gradient(Backward& backward, const Part& part, const Tensor& dv,
                       const GradSlot& slot) {
  const kernels::Table& kernels = backward.kernels();
  const Tensor sums = backward.empty({dv.size(1)}, slot.out.dtype(), "feed_forward.bias");
  const auto copy_pieces = [&](bool back) {
    part.for_each_piece([&](Range of, int64_t column) {
      const Tensor of_bias = slot.out.slice(0, of.begin, of.size),
                   of_sums = sums.slice(0, column, of.size);
      kernels.copy({.x = back ? of_sums : of_bias, .out = back ? of_bias : of_sums},
                   backward.stream());
    });
  };
  if (slot.beta != 0) copy_pieces(false);
  kernels.column_sum({.x = dv, .out = {.out = sums, .beta = slot.beta}}, backward.stream());
  copy_pieces(true);
}

void wgrad(Backward& backward) {
  const auto& [block, input] = backward.attributes<Attributes>();
  const auto slot = [&](const Weight& weight) {
    return weight ? backward.tape().grad_slot(weight) : GradSlot();
  };
  const GradSlot up = slot(block.up), up_bias = slot(block.up_bias), down = slot(block.down),
                 down_bias = slot(block.down_bias);
  const Tensor& dout = backward.gradient(0);
  const kernels::Table& kernels = backward.kernels();
  if (down_bias.out.defined()) kernels.column_sum({.x = dout, .out = down_bias}, backward.stream());
  if (up.out.defined() || up_bias.out.defined() || down.out.defined()) {
    const Tensor x = input.gathered(backward);
    for_each_part(width_of(block).size, block.chunks, 32, [&](Range width) {
      const Part part(block, width, backward.tape());
      Tensor v, y;
      part.forward(x, &v, &y);
      if (down.out.defined())
        kernels.gemm({.a = dout,
                      .b = y,
                      .out = down.out.slice(1, width.begin, width.size),
                      .transpose_a = true,
                      .beta = down.beta},
                     backward.stream());
      y = {};
      if (!up.out.defined() && !up_bias.out.defined()) return;
      const Tensor dv = part.gradient(v, dout);
      v = {};
      if (up.out.defined())
        part.for_each_piece([&](Range of, int64_t column) {
          kernels.gemm({.a = dv.slice(1, column, of.size),
                        .b = x,
                        .out = up.out.slice(0, of.begin, of.size),
                        .transpose_a = true,
                        .beta = up.beta},
                       backward.stream());
        });
      if (up_bias.out.defined()) add_bias_gradient(backward, part, dv, up_bias);
    });
  }
  input.release();
}

}  // namespace

Var feed_forward(Tape& tape, const Var& x, const FeedForward& block, const TensorParallel& tp) {
  Attributes attributes{.block = block, .input = ColumnInput(tp)};
  Weight& down_bias = attributes.block.down_bias;
  if (!alone(tp.group)) down_bias = {};  // added to the sum over the ranks
  const Tensor whole = ColumnInput::whole(tape, x, tp), &w = block.down.value();
  const Tensor y = Tensor::empty(tape.runtime().arena(partial_memory(tp)),
                                 {whole.size(0), w.size(0)}, w.dtype(), "linear.y");
  const Part all(block, width_of(block), tape);
  for_each_part(whole.size(0), block.chunks, 1, [&](Range rows) {
    Tensor inner;
    all.forward(whole.slice(0, rows.begin, rows.size), nullptr, &inner);
    tape.kernels().gemm(
        ops::linear_call(inner, block.down, down_bias, y.slice(0, rows.begin, rows.size)),
        tape.stream());
  });
  const Var in = attributes.input.record(tape, x, whole);
  Node node{.name = "feed_forward",
            .inputs = {in.id, x.id},  // x: recomputed for this node if it need not be kept
            .saved = {x.value},
            .weights = {block.up, block.down},
            .dgrad = dgrad,
            .wgrad = wgrad};
  for (const Weight& bias : {block.up_bias, down_bias})
    if (bias) node.weights.push_back(bias);
  node.attributes = std::move(attributes);
  const Var sum = tape.record_one(std::move(node), y);
  return alone(tp.group) ? sum : row_sum(tape, sum, block.down_bias, tp);
}

}  // namespace megatron::parallel
