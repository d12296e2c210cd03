// Offload: what backward needs of a stretch of forward lies in host memory in between (Rhu et al.
// 2016, vDNN).
#pragma once

#include <memory>
#include <vector>

#include "autograd/tape.h"

namespace megatron {

// Tensors that were moved to MemoryClass::offload, one entry a storage; weak, since each belongs to
// the nodes that need it and is freed with the last of them.
class Offloaded {
 public:
  // Moves what the nodes recorded on the tape since there were `first` have saved: activations of a
  // floating type, each storage once, whatever number of nodes has views of it. Parameters and
  // the batch stay.
  static Offloaded move(Tape& tape, size_t first);

  // Records that backward, where it passes this place, brings all of them back. What is not back
  // when a node needs it comes back then.
  void bring_back_here(Tape& tape) const;
  size_t storages() const { return moved_.size(); }

 private:
  std::vector<std::weak_ptr<Source>> moved_;
};

}  // namespace megatron
