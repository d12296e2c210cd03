#pragma once

#include "nn/builder.h"
#include "ops/linear.h"

namespace megatron::nn {

// y = x w^T + b with w and b replicated on every tensor-parallel rank, applied to the tokens that
// the rank holds outside the divided matrix products. Parameters <name>.weight [out,in],
// <name>.bias [out].
class ReplicatedLinear {
 public:
  ReplicatedLinear(Builder& builder, const std::string& name, int64_t in, int64_t out, bool bias,
                   parallel::Init init)
      : weight_(builder.add(name + ".weight", {out, in}, init)) {
    const bool tokens = builder.tensor().divides_tokens();
    builder.quantize(*weight_.parameter, {tokens, false, tokens});
    if (bias) bias_ = builder.add(name + ".bias", {out}, zeros());
    adapter_ = builder.add_adapter(*weight_.parameter);
  }
  Var operator()(Tape& tape, const Var& x) const {
    return ops::linear(tape, x, weight_, bias_, MemoryClass::activations, adapter_);
  }

 private:
  Weight weight_, bias_;
  ops::LowRank adapter_;
};

}  // namespace megatron::nn
