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

// A low-rank addition to a matrix w [out,in] that multiplies x [T,in]: scale * b a, for some rows
// of w. The products a x^T of several parts are computed as one.
struct LowRank {
  struct Part {
    Weight b;  // [n,r]: for rows [row, row + n) of w
    int64_t row = 0;
    int64_t first = 0;  // b multiplies rows [first, first + r) of a
    // [n] or none: scale * bias is added to y as well, by one of the ranks whose y are summed.
    Weight bias = {};
    bool adds_bias = true;
    // [n] or none: the trained norms of these rows of w + scale * b a (DoRA; Liu et al. 2024).
    // Either all parts have magnitudes or none.
    Weight magnitude = {};
  };
  struct Block {
    Weight a;  // [R,in]
    double scale = 1;
    std::vector<Part> parts;
  };
  std::vector<Block> blocks;
  // With magnitudes: number of elements of a whole row of w, and a function that adds up sums over
  // the ranks that divide rows; empty: this rank has whole rows.
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

  // Trained rows that replace rows of w, in adapters without dropout; matrix: w.
  ReplacedRows replaced = {};
  Weight matrix = {};

  explicit operator bool() const { return !blocks.empty() || replaced; }
  bool has_magnitudes() const {
    return !blocks.empty() && static_cast<bool>(blocks[0].parts.at(0).magnitude);
  }
};

// True if the tape's pass has dropout on the adapter's input.
bool drops(const LowRank& adapter, const Tape& tape);
// The adapter's input: x [T,in] of all rows of the product, with dropout if the pass has it.
Tensor low_rank_input(const LowRank& adapter, Tape& tape, const Tensor& x);
// Accumulates the gradient of low_rank_input(). Without dropout it is added directly to the
// gradient of x (which may be undefined). With dropout it has a buffer of its own, initially zero,
// which finish() adds to the gradient of x with the dropout mask.
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

// The same for several adapters, each of which adds to its own rows; without backward.
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
// The matrix of an adapter with magnitudes (DoRA): the rows of w + scale * b a, scaled so that
// their norms are the magnitudes. Backward treats the norms before scaling as constants, as the
// paper does, and computes the gradient of the whole matrix.
Tensor decomposed_matrix(const LowRank& adapter, Tape& tape, const Tensor& w);
// decomposed_matrix() - w, which multiplies low_rank_input() if that differs from x.
Tensor decomposed_difference(const LowRank& adapter, Tape& tape, const Tensor& w);
void add_decomposed_gradients(const LowRank& adapter, Tape& tape, const Tensor& w, const Tensor& dy,
                              const Tensor& x);

// Calls f for every weight of an adapter.
void for_each_weight(const LowRank& adapter, const std::function<void(const Weight&)>& f);

// The matrix of a product with an adapter: w, or decomposed_matrix() where x and low_rank_input()
// are the same.
Tensor adapted_matrix(const LowRank& adapter, Tape& tape, const Tensor& w);
// The rest of the product in forward: adds to y what adapted_matrix() does not contain. Returns
// what add_low_rank() returns.
std::vector<Tensor> add_adapter(const LowRank& adapter, Tape& tape, const Tensor& w,
                                const Tensor& x, const Tensor& y);

// The part of a product's node that belongs to an adapter.
class LowRankNode {
 public:
  // Appends the adapter's weights to the node's, and `inner`, the result of add_adapter(), to its
  // saved tensors. Does nothing without an adapter.
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
