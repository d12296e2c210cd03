#pragma once

#include "autograd/tape.h"
#include "nn/batch.h"
#include "nn/builder.h"

namespace megatron::nn {

// Dropout of activations [T,H] outside the divided matrix products. The mask depends on an
// element's identity, not on the rank that holds it.
class Dropout {
 public:
  // name: name of the place in the model.
  Dropout(const Builder& builder, const std::string& name, double p, uint64_t seed);
  Var operator()(Tape& tape, const Var& x, const Batch& batch, bool train) const;

 private:
  parallel::TensorParallel tensor_;
  kernels::DropoutArgs::Mask mask_;
};

}  // namespace megatron::nn
