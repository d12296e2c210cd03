// Tensors that forward saves for backward, kept or restored from a source.
#pragma once

#include <memory>

#include "tensor/tensor.h"

namespace megatron {

class Tape;

// Restores tensors of forward: recomputed, copied from elsewhere, or assembled.
class Source {
 public:
  virtual ~Source() = default;
  // Returns a tensor whose storage has the elements of tensor `which` at the same positions and
  // with the same bits as in forward. tape: the one that runs backward.
  virtual Tensor bring_back(size_t which, Tape& tape) = 0;
};

// A tensor that a node needs in backward: kept, or a shell with its source.
class Saved {
 public:
  Saved(Tensor kept) : tensor_(std::move(kept)) {}
  Saved(const Tensor& view, std::shared_ptr<Source> source, size_t which = 0)
      : tensor_(view.shell()), source_(std::move(source)), which_(which) {}

  bool kept() const { return source_ == nullptr; }
  const Tensor& tensor() const { return tensor_; }  // undefined unless kept
  // Restores the tensor, which is kept from now on.
  void restore(Tape& tape) {
    if (kept()) return;
    tensor_ = tensor_.on(source_->bring_back(which_, tape));
    source_.reset();
  }

 private:
  Tensor tensor_;
  std::shared_ptr<Source> source_;
  size_t which_ = 0;
};

}  // namespace megatron
