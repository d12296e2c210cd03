// Low-rank additions to matrices (LoRA; Hu et al. 2021).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "ops/replaced_rows.h"

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
    // [n] or none: the lengths of these rows of w + scale * b a (DoRA; Liu et al. 2024). All parts
    // have one or none has.
    Weight magnitude = {};
  };
  struct Block {
    Weight a;  // [R,in]
    double scale = 1;
    std::vector<Part> parts;
  };
  std::vector<Block> blocks;
  // If it has magnitudes: the length of rows of w on all ranks, and a function that adds up
  // sums over the ranks that divide them; empty: rows are whole.
  int64_t row_width = 0;
  std::function<void(const Tensor& sums, Stream& stream)> add_up = {};
  // Dropout of x before it is multiplied by a, in passes whose tape has batch_rows().
  struct Dropout {
    float p = 0;  // 0: none; below 1
    uint64_t seed = 0, stream = 0;
    int64_t first_channel = 0;  // channel of x's column 0
    // Index of x's first row among all rows of the batch, given their number; empty: 0.
    std::function<int64_t(int64_t rows)> first_row = {};
  } dropout = {};

  // Rows of w in place of which others multiply x, in adapters without dropout; matrix: w.
  ReplacedRows replaced = {};
  Weight matrix = {};

  explicit operator bool() const { return !blocks.empty() || replaced; }
  bool has_magnitudes() const {
    return !blocks.empty() && static_cast<bool>(blocks[0].parts.at(0).magnitude);
  }
};

// Whether the tape's pass has dropout of the adapter's input.
bool drops(const LowRank& adapter, const Tape& tape);
// What the adapter multiplies: x [T,in] of all rows of the product, with dropout if the pass has
// it.
Tensor low_rank_input(const LowRank& adapter, Tape& tape, const Tensor& x);
// Where the gradient of low_rank_input() is added up: the gradient of x itself (which may be
// undefined), or if the pass has dropout zeros beside it, which finish() adds to it with dropout.
class LowRankInputGradient {
 public:
  LowRankInputGradient(const LowRank& adapter, Tape& tape, const Tensor& dx);
  const Tensor& sum() const { return sum_; }
  void finish();

 private:
  const LowRank& adapter_;
  Tape& tape_;
  Tensor dx_, sum_;
};

// y[:, row:row+n] += scale (x a^T) b^T, each product rounded to the type of y, where x are rows of
// low_rank_input(); then the columns of y that belong to replaced rows of w, without a bias.
// Returns scale (x a^T) [T,R] of every block, which the gradients of b need. Returns nothing if the
// tape leaves out adapters, or if the adapter has magnitudes.
std::vector<Tensor> add_low_rank(Tape& tape, const LowRank& adapter, const Tensor& x,
                                 const Tensor& y);

// The same, where several adapters each add to rows of their own, in passes without backward.
struct AdaptedRows {
  const LowRank* adapter;
  Tensor x, y;
};
void add_low_rank(Tape& tape, std::span<const AdaptedRows> rows);

// The gradient of what add_low_rank() returned, and then the columns of dy that belong to replaced
// rows.
std::vector<Tensor> low_rank_inner_gradients(const LowRank& adapter, Tape& tape, const Tensor& dy);
// dx += dy times what the adapter adds to w: dx is the gradient of low_rank_input().
void add_low_rank_input_gradient(const LowRank& adapter, Tape& tape,
                                 std::span<const Tensor> inner_gradients, const Tensor& dx);
// Writes the gradients of a, b and biases to their slots. inner: what add_low_rank() returned.
void add_low_rank_weight_gradients(const LowRank& adapter, Tape& tape,
                                   std::span<const Tensor> inner,
                                   std::span<const Tensor> inner_gradients, const Tensor& dy,
                                   const Tensor& x);
// All three for an op that computes its gradients in forward; dx may be undefined.
void add_low_rank_gradients(const LowRank& adapter, Tape& tape, std::span<const Tensor> inner,
                            const Tensor& dy, const Tensor& x, const Tensor& dx);
// An adapter with magnitudes makes another matrix: rows of w + scale * b a, scaled to their
// magnitudes. Its backward holds the lengths of those rows constant, as the paper does, and forms
// the gradient of the whole matrix.
Tensor decomposed_matrix(const LowRank& adapter, Tape& tape, const Tensor& w);
// decomposed_matrix() less w, by which low_rank_input() is multiplied if it differs from x.
Tensor decomposed_difference(const LowRank& adapter, Tape& tape, const Tensor& w);
void add_decomposed_gradients(const LowRank& adapter, Tape& tape, const Tensor& w, const Tensor& dy,
                              const Tensor& x);

// Calls f for every weight of an adapter.
void for_each_weight(const LowRank& adapter, const std::function<void(const Weight&)>& f);

// The matrix of a product with an adapter: w, or decomposed_matrix() where x and low_rank_input()
// are the same.
Tensor adapted_matrix(const LowRank& adapter, Tape& tape, const Tensor& w);
// The rest of the product in forward: adds to y what adapted_matrix() does not have. Returns what
// add_low_rank() does.
std::vector<Tensor> add_adapter(const LowRank& adapter, Tape& tape, const Tensor& w,
                                const Tensor& x, const Tensor& y);

// The part of a product's node that belongs to an adapter.
class LowRankNode {
 public:
  // Appends the adapter's weights to the node's, and `inner`, the result of add_adapter(), to what
  // it has saved. Nothing for no adapter.
  LowRankNode(Node& node, LowRank adapter, std::vector<Tensor> inner);
  LowRankNode() = default;

  explicit operator bool() const { return static_cast<bool>(adapter_); }
  // The matrix that the product is with: w, or the one that the adapter makes of it.
  Tensor matrix(Backward& backward, const Tensor& w) const;
  // dx += dy times what the adapter adds to w, in the product's dgrad.
  void input_gradient(Backward& backward, const Tensor& w, const Tensor& dy,
                      const Tensor& dx) const;
  // Writes the gradients of the adapter's weights to their slots, in the product's wgrad.
  void weight_gradients(Backward& backward, const Tensor& w, const Tensor& dy,
                        const Tensor& x) const;

 private:
  const std::vector<Tensor>& inner_gradients(Backward& backward, const Tensor& dy) const;
  LowRank adapter_;
  size_t saved_ = 0;  // index of the first inner tensor
  // Gradients of the inner tensors: dgrad computes them, wgrad uses them once more.
  std::shared_ptr<std::vector<Tensor>> gradients_ = std::make_shared<std::vector<Tensor>>();
};

}  // namespace megatron::ops
