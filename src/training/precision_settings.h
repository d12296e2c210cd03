// Number formats of a run.
#pragma once

#include "base/dtype.h"
#include "base/fields.h"

namespace megatron::training {

struct PrecisionSettings {
  bool bf16 = false;

  void fields(Fields& fields);
  DType type() const { return bf16 ? DType::bf16 : DType::f32; }  // of parameters and activations
};

}  // namespace megatron::training
