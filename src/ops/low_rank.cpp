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

}  // namespace

std::vector<Tensor> add_low_rank(Tape& tape, const LowRank& adapter, const Tensor& x,
                                 const Tensor& y) {
  const kernels::Table& kernels = tape.kernels();
  std::vector<Tensor> inner;
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
                    .beta = 1},
                   tape.stream());
    inner.push_back(std::move(inner_TR));
  }
  return inner;
}

LowRankNode::LowRankNode(Node& node, LowRank adapter, std::vector<Tensor> inner)
    : adapter_(std::move(adapter)), saved_(node.saved.size()) {
  for (const LowRank::Block& block : adapter_.blocks) {
    node.weights.push_back(block.a);
    for (const LowRank::Part& part : block.parts) node.weights.push_back(part.b);
  }
  for (Tensor& tensor : inner) node.saved.emplace_back(std::move(tensor));
}

const std::vector<Tensor>& LowRankNode::inner_gradients(Backward& backward,
                                                        const Tensor& dy) const {
  if (!gradients_->empty()) return *gradients_;
  const kernels::Table& kernels = backward.kernels();
  for (const LowRank::Block& block : adapter_.blocks) {
    const Tensor& a = block.a.value();
    Tensor gradient_TR =
        backward.empty({dy.size(0), a.size(0)}, a.dtype(), "low_rank.inner, gradient");
    for (const LowRank::Part& part : block.parts)
      kernels.gemm(
          {.a = columns_of(part, dy), .b = part.b.value(), .out = inner_of(part, gradient_TR)},
          backward.stream());
    scale(kernels, block.scale, gradient_TR, backward.stream());
    gradients_->push_back(std::move(gradient_TR));
  }
  return *gradients_;
}

void LowRankNode::input_gradient(Backward& backward, const Tensor& dy, const Tensor& dx) const {
  if (!adapter_) return;
  const std::vector<Tensor>& gradients = inner_gradients(backward, dy);
  for (size_t i = 0; i < gradients.size(); ++i)
    backward.kernels().gemm(
        {.a = gradients[i], .b = adapter_.blocks[i].a.value(), .out = dx, .beta = 1},
        backward.stream());
}

void LowRankNode::weight_gradients(Backward& backward, const Tensor& dy, const Tensor& x) const {
  if (!adapter_) return;
  const kernels::Table& kernels = backward.kernels();
  const std::vector<Tensor>& gradients = inner_gradients(backward, dy);
  const auto add = [&](const Weight& weight, const Tensor& rows, const Tensor& columns) {
    if (const GradSlot slot = backward.tape().grad_slot(weight); slot.out.defined())
      kernels.gemm(
          {.a = rows, .b = columns, .out = slot.out, .transpose_a = true, .beta = slot.beta},
          backward.stream());
  };
  for (size_t i = 0; i < gradients.size(); ++i) {
    const LowRank::Block& block = adapter_.blocks[i];
    const Tensor& inner_TR = backward.saved(saved_ + i);
    for (const LowRank::Part& part : block.parts)
      add(part.b, columns_of(part, dy), inner_of(part, inner_TR));
    add(block.a, gradients[i], x);
  }
  gradients_->clear();
}

}  // namespace megatron::ops
