// What comes between the final norm and the output layer (HeadTransform), built from its value.
#pragma once

#include <memory>
#include <string>

#include "models/decoder/value.h"
#include "nn/norm.h"
#include "nn/replicated_linear.h"

namespace megatron::models {

// Parameters <name>.dense.weight [H,H], <name>.dense.bias [H] if it has one, and of a norm
// <name>.norm.weight and .bias [H]. All ranks hold all of them.
class HeadTransformLayer {
 public:
  HeadTransformLayer(nn::Builder& builder, const std::string& name, const HeadTransform& config,
                     const DecoderValue& model);
  Var operator()(Tape& tape, const Var& x_TH) const;

 private:
  HeadTransform config_;
  nn::ReplicatedLinear dense_;
  std::unique_ptr<nn::AddNorm> norm_;
};

}  // namespace megatron::models
