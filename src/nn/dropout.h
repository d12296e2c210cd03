#pragma once

#include "autograd/tape.h"
#include "nn/batch.h"
#include "nn/builder.h"

namespace megatron::nn {

// Dropout of activations [T,H] between the matrices: which elements it takes depends on what they
// are, not on which rank holds them.
class Dropout {
 public:
  // name: of the place in the model.
  Dropout(const Builder& builder, const std::string& name, double p, uint64_t seed);
  Var operator()(Tape& tape, const Var& x, const Batch& batch, bool train) const;

 private:
  parallel::TensorParallel tensor_;
  kernels::DropoutArgs::Mask mask_;
};

}  // namespace megatron::nn
