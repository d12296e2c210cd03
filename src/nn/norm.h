#pragma once

#include "nn/builder.h"
#include "ops/norm.h"

namespace megatron::nn {

enum class Normalization { layer_norm, rms_norm };

struct NormConfig {
  Normalization kind = Normalization::layer_norm;
  double epsilon = 1e-5;
  bool bias = true;  // LayerNorm only
  // The factor is 1 + weight, so weight decay pulls it towards 1 (--apply-layernorm-1p, Gemma).
  bool one_plus = false;

  bool operator==(const NormConfig&) const = default;
  double weight_offset() const { return one_plus ? 1 : 0; }
  bool has_bias() const { return bias && kind == Normalization::layer_norm; }
  int64_t parameters(int64_t width) const { return has_bias() ? 2 * width : width; }
  parallel::Init weight_init() const { return one_plus ? zeros() : ones(); }
};

// {norm(x + residual), x + residual}; parameters <name>.weight [H] and <name>.bias [H], if the norm
// has one. Module "layernorm" of a tape: the sum is kept and the norm recomputed.
class AddNorm {
 public:
  AddNorm(Builder& builder, const std::string& name, int64_t hidden, const NormConfig& config)
      : config_(config),
        weight_(builder.add(name + ".weight", {hidden}, config.weight_init())),
        bias_(config.has_bias() ? Weight(builder.add(name + ".bias", {hidden}, zeros()))
                                : Weight()) {}
  ops::AddNorm operator()(Tape& tape, const Var& x, const Var& residual) const {
    return tape.recomputes("layernorm") ? recomputed(tape, x, residual) : normed(tape, x, residual);
  }

 private:
  ops::AddNorm recomputed(Tape& tape, const Var& x, const Var& residual) const;
  ops::AddNorm normed(Tape& tape, const Var& x, const Var& residual) const {
    return config_.kind == Normalization::layer_norm
               ? ops::add_layer_norm(tape, x, residual, weight_, bias_, config_.epsilon,
                                     config_.weight_offset())
               : ops::add_rms_norm(tape, x, residual, weight_, config_.epsilon,
                                   config_.weight_offset());
  }

  NormConfig config_;
  Weight weight_, bias_;
};

}  // namespace megatron::nn
