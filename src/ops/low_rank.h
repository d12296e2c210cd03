// Low-rank additions to matrices (LoRA; Hu et al. 2021).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "autograd/tape.h"

namespace megatron::ops {

// What is added to a matrix w [out,in] where x [T,in] is multiplied by it: scale * b a, for rows of
// w. The products a x^T of several parts are one product.
struct LowRank {
  struct Part {
    Weight b;           // [n,r]: rows [row, row + n) of w ...
    int64_t row = 0;    // ... multiply
    int64_t first = 0;  // rows [first, first + r) of a
    // [n] or none: scale * bias is added to y as well, by one of the ranks whose y are summed.
    Weight bias = {};
    bool adds_bias = true;
  };
  struct Block {
    Weight a;  // [R,in]
    double scale = 1;
    std::vector<Part> parts;
  };
  std::vector<Block> blocks;

  explicit operator bool() const { return !blocks.empty(); }
};

// y[:, row:row+n] += scale (x a^T) b^T, each product rounded to the type of y. Returns scale (x
// a^T) [T,R] of every block, which the gradients of b need.
std::vector<Tensor> add_low_rank(Tape& tape, const LowRank& adapter, const Tensor& x,
                                 const Tensor& y);

// The gradient of what add_low_rank() returned.
std::vector<Tensor> low_rank_inner_gradients(Tape& tape, const LowRank& adapter, const Tensor& dy);
// dx += dy times what the adapter adds to w.
void add_low_rank_input_gradient(Tape& tape, const LowRank& adapter,
                                 std::span<const Tensor> inner_gradients, const Tensor& dx);
// Writes the gradients of a, b and biases to their slots. inner: what add_low_rank() returned.
void add_low_rank_weight_gradients(Tape& tape, const LowRank& adapter,
                                   std::span<const Tensor> inner,
                                   std::span<const Tensor> inner_gradients, const Tensor& dy,
                                   const Tensor& x);
// All three for an op that computes its gradients in forward; dx may be undefined.
void add_low_rank_gradients(Tape& tape, const LowRank& adapter, std::span<const Tensor> inner,
                            const Tensor& dy, const Tensor& x, const Tensor& dx);
// Calls f for every weight of an adapter.
void for_each_weight(const LowRank& adapter, const std::function<void(const Weight&)>& f);

// The part of a product's node that belongs to an adapter.
class LowRankNode {
 public:
  // Appends the adapter's weights to the node's, and `inner`, the result of add_low_rank(), to what
  // it has saved. Nothing for no adapter.
  LowRankNode(Node& node, LowRank adapter, std::vector<Tensor> inner);
  LowRankNode() = default;

  explicit operator bool() const { return static_cast<bool>(adapter_); }
  // dx += dy times what the adapter adds to w, in the product's dgrad.
  void input_gradient(Backward& backward, const Tensor& dy, const Tensor& dx) const;
  // Writes the gradients of a and b to their slots, in the product's wgrad.
  void weight_gradients(Backward& backward, const Tensor& dy, const Tensor& x) const;

 private:
  const std::vector<Tensor>& inner_gradients(Backward& backward, const Tensor& dy) const;
  LowRank adapter_;
  size_t saved_ = 0;  // index of the first inner tensor
  // Gradients of the inner tensors: dgrad computes them, wgrad uses them once more.
  std::shared_ptr<std::vector<Tensor>> gradients_ = std::make_shared<std::vector<Tensor>>();
};

}  // namespace megatron::ops
