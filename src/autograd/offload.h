// Offload: tensors saved by a part of forward are kept in host memory until backward needs them
// (Rhu et al. 2016, vDNN).
#pragma once

#include <memory>
#include <vector>

#include "autograd/tape.h"

namespace megatron {

// Tensors that were moved to MemoryClass::offload, one entry per storage; weak references, since
// each belongs to the nodes that need it and is freed with the last of them.
class Offloaded {
 public:
  // Moves the tensors saved by the tape's nodes from number `first` on: floating-point activations,
  // each storage once, however many nodes have views of it. Parameters and the batch are not moved.
  static Offloaded move(Tape& tape, size_t first);

  // Records that backward brings all of them back when it passes this place. A tensor that a node
  // needs earlier is brought back then.
  void bring_back_here(Tape& tape) const;
  size_t storages() const { return moved_.size(); }

 private:
  std::vector<std::weak_ptr<Source>> moved_;
};

}  // namespace megatron
