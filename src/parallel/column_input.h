// The input of a product whose outputs are divided among tensor-parallel ranks.
#pragma once

#include <memory>

#include "parallel/collectives.h"

namespace megatron::parallel {

// Such a product is two nodes that share the collectives in flight: its input, whose backward waits
// for the sum of dx over the ranks, and the product, whose backward begins it. The weight's
// gradient runs between them. The product keeps this rank's rows of x and gathers all of them
// again. With one rank there is no input's node, and nothing is sent.
class ColumnInput {
 public:
  explicit ColumnInput(const TensorParallel& tp) : tp_(tp) {}

  // The rows of x of all ranks: x itself unless tokens are divided.
  static Tensor whole(Tape& tape, const Var& x, const TensorParallel& tp);
  // Records the input's node if x needs a gradient; returns the product's input.
  Var record(Tape& tape, const Var& x, const Tensor& whole) const;

  // In the product's backward, whose first saved tensor is x and whose first input is the Var of
  // record(). gathered() waits for begin_gather(), and begins it if it has not been called since
  // release().
  void begin_gather(Backward& backward) const;
  Tensor gathered(Backward& backward) const;
  void release() const;
  Tensor partial_gradient(Backward& backward, Shape shape, DType type) const;  // memory for dx
  void begin_sum(Backward& backward, const Tensor& dx) const;

 private:
  struct Pending {
    PendingSum dx;
    comm::Work x_work;
    Tensor x;  // rows of all ranks
  };
  TensorParallel tp_;
  std::shared_ptr<Pending> pending_ = std::make_shared<Pending>();
};

}  // namespace megatron::parallel
