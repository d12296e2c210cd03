// The feed-forward block.
#pragma once

#include "nn/linear.h"
#include "ops/activation.h"

namespace megatron::nn {

struct MlpConfig {
  int64_t hidden = 0, ffn = 0;
  kernels::Activation activation = kernels::Activation::gelu_tanh;
  bool gated = false, bias = false;
};

// down(f(up x)), or down(f(gate x) * (up x)) when gated. Parameters <name>.up.weight [F, H] (gated:
// [2F, H] = [gate | up]), <name>.down.weight [H, F], and their biases.
class Mlp {
 public:
  Mlp(Builder& builder, const std::string& name, const MlpConfig& config, parallel::Init init,
      parallel::Init output_init)
      : config_(config),
        up_(builder, name + ".up", config.hidden, (config.gated ? 2 : 1) * config.ffn, config.bias,
            init),
        down_(builder, name + ".down", config.ffn, config.hidden, config.bias, output_init) {}
  Var operator()(Tape& tape, const Var& x_TH) const {
    return down_(tape, ops::activation(tape, up_(tape, x_TH), config_.activation, config_.gated));
  }

 private:
  MlpConfig config_;
  Linear up_, down_;
};

}  // namespace megatron::nn
