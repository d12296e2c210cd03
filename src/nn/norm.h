#pragma once

#include "nn/builder.h"
#include "ops/norm.h"

namespace megatron::nn {

enum class Normalization { layer_norm, rms_norm };

// {norm(x + residual), x + residual}; parameters <name>.weight [H] and, for LayerNorm, <name>.bias
// [H]. Module "layernorm" of a tape: the sum is kept and the norm computed again.
class AddNorm {
 public:
  AddNorm(Builder& builder, const std::string& name, int64_t hidden, Normalization kind, double eps)
      : weight_(builder.add(name + ".weight", {hidden}, ones())),
        bias_(kind == Normalization::layer_norm
                  ? Weight(builder.add(name + ".bias", {hidden}, zeros()))
                  : Weight()),
        eps_(eps) {}
  ops::AddNorm operator()(Tape& tape, const Var& x, const Var& residual) const {
    return tape.recomputes("layernorm") ? recomputed(tape, x, residual) : normed(tape, x, residual);
  }

 private:
  ops::AddNorm recomputed(Tape& tape, const Var& x, const Var& residual) const;
  ops::AddNorm normed(Tape& tape, const Var& x, const Var& residual) const {
    return bias_ ? ops::add_layer_norm(tape, x, residual, weight_, bias_, eps_)
                 : ops::add_rms_norm(tape, x, residual, weight_, eps_);
  }

  Weight weight_, bias_;
  double eps_;
};

}  // namespace megatron::nn
