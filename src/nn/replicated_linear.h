#pragma once

#include "nn/builder.h"
#include "ops/linear.h"

namespace megatron::nn {

// y = x w^T, of which every tensor-parallel rank has all of w, on the tokens that it has between the
// matrices; parameter <name>.weight [H,H].
class ReplicatedLinear {
 public:
  ReplicatedLinear(Builder& builder, const std::string& name, int64_t hidden, parallel::Init init)
      : weight_(builder.add(name + ".weight", {hidden, hidden}, init)) {}
  Var operator()(Tape& tape, const Var& x) const { return ops::linear(tape, x, weight_); }

 private:
  Weight weight_;
};

}  // namespace megatron::nn
