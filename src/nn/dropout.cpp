#include "nn/dropout.h"

#include "base/philox.h"
#include "ops/elementwise.h"

namespace megatron::nn {

Dropout::Dropout(const Builder& builder, const std::string& name, double p, uint64_t seed)
    : tensor_(builder.tensor()),
      mask_{.p = static_cast<float>(p), .seed = seed, .stream = hash_name(name)} {}

Var Dropout::operator()(Tape& tape, const Var& x, const Batch& batch, bool train) const {
  if (!train) return x;
  kernels::DropoutArgs::Mask mask = mask_;
  mask.rows = batch.rows_of(tensor_);
  return ops::dropout(tape, x, mask);
}

}  // namespace megatron::nn
