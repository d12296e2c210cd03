// What backward needs of forward, and tensors that are not kept for it but come back.
#pragma once

#include <memory>

#include "tensor/tensor.h"

namespace megatron {

class Tape;

// Brings back tensors that forward had: computed again, copied from elsewhere, or put together.
class Source {
 public:
  virtual ~Source() = default;
  // A tensor in whose storage the elements of tensor `which` lie where forward had them, bit for
  // bit. tape: that backward runs.
  virtual Tensor bring_back(size_t which, Tape& tape) = 0;
};

// A tensor that a node has for its backward: kept, or the shell of one with its source.
class Saved {
 public:
  Saved(Tensor kept) : tensor_(std::move(kept)) {}
  Saved(const Tensor& view, std::shared_ptr<Source> source, size_t which = 0)
      : tensor_(view.shell()), source_(std::move(source)), which_(which) {}

  bool kept() const { return source_ == nullptr; }
  const Tensor& tensor() const { return tensor_; }  // undefined unless kept
  // Kept from now on.
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
