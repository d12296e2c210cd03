// The feed-forward block.
#pragma once

#include "base/error.h"
#include "nn/linear.h"
#include "ops/activation.h"
#include "ops/columns.h"
#include "ops/scale.h"
#include "parallel/feed_forward.h"

namespace megatron::nn {

struct MlpConfig {
  int64_t ffn = 0;
  kernels::Activation activation = kernels::Activation::gelu_tanh;
  bool gated = false, bias = false;
  double clamp = 0, up_offset = 0;  // gated form only (kernels/activation.h)
  // Factors of the gate before its activation (gated form only), and of the output.
  double gate_multiplier = 1, output_multiplier = 1;

  bool operator==(const MlpConfig&) const = default;
};

// down(f(up x)), or down(f(gate x) * (up x)) when gated. Parameters <name>.up.weight [F, H] (gated:
// [2F, H] = [gate | up]), <name>.down.weight [H, F], and their biases. Modules of a tape: "mlp_act"
// is f, whose input is kept; "mlp" is everything between the two products, including the first. A
// plain gelu_tanh is an epilogue of the products, except with "mlp_act", because an epilogue may
// use its input before it is rounded to the kept type, and with adapters. With several chunks,
// tokens pass through the block a chunk at a time, and only x is kept (parallel/feed_forward.h).
class Mlp {
 public:
  Mlp(Builder& builder, const std::string& name, int64_t hidden, const MlpConfig& config,
      parallel::Init init, parallel::Init output_init, int64_t chunks = 1)
      : config_(config),
        chunks_(chunks),
        tensor_(builder.tensor()),
        up_(builder, name + ".up", hidden, std::vector<int64_t>(config.gated ? 2 : 1, config.ffn),
            config.bias, init),
        down_(builder, name + ".down", config.ffn, hidden, config.bias, output_init) {
    MG_CHECK(chunks == 1 || (config.gate_multiplier == 1 && config.output_multiplier == 1),
             "--mlp-chunks-for-training {} divides the tokens of MLPs without multipliers, and "
             "this model's have the multipliers {} and {}; use 1",
             chunks, config.gate_multiplier, config.output_multiplier);
  }
  Var operator()(Tape& tape, const Var& x_TH) const {
    return chunks_ > 1 ? in_chunks(tape, x_TH) : down(tape, up(tape, x_TH));
  }
  bool adapted() const { return up_.adapted() || down_.adapted(); }

  // The intermediate result between the halves: f(up x), and the input of f if it is an epilogue.
  // The second half is the down-projection. The halves do not divide tokens into chunks.
  struct Inner {
    Var y, v;  // v: undefined if f is not an epilogue
  };
  Inner up(Tape& tape, const Var& x_TH) const {
    const bool apart = (tape.recomputes("mlp_act") && !tape.recomputes("mlp")) || adapted();
    if (config_.activation == kernels::Activation::gelu_tanh && !config_.gated && !apart)
      return with_gelu(tape, x_TH);
    return {.y = tape.module("mlp", {{"x", x_TH}},
                             [this](Tape& t, const Bundle& in) {
                               return activated(t, with_factor(t, up_(t, in["x"])));
                             },
                             {"y"})["y"]};
  }
  Var down(Tape& tape, const Inner& inner) const {
    const Var y =
        inner.v.value.defined() ? down_(tape, ops::Gelu{inner.v, inner.y}) : down_(tape, inner.y);
    return ops::scale(tape, y, config_.output_multiplier);
  }

 private:
  Var with_factor(Tape& tape, Var&& v) const {
    if (config_.gate_multiplier == 1) return std::move(v);
    const int64_t width = v.value.size(1) / 2;
    return ops::scale_columns(tape, std::move(v), {{width, config_.gate_multiplier}, {width, 1}});
  }
  Var in_chunks(Tape& tape, const Var& x_TH) const {
    return parallel::feed_forward(tape, x_TH,
                                  {.up = up_.weight(),
                                   .up_bias = up_.bias(),
                                   .down = down_.weight(),
                                   .down_bias = down_.bias(),
                                   .activation = config_.activation,
                                   .gated = config_.gated,
                                   .clamp = config_.clamp,
                                   .up_offset = config_.up_offset,
                                   .chunks = chunks_},
                                  tensor_);
  }
  Bundle activated(Tape& tape, const Var& v) const {
    return tape.module(
        "mlp_act", {{"v", v}},
        [this](Tape& t, const Bundle& in) {
          return Bundle{{"y", ops::activation(t, in["v"], config_.activation, config_.gated,
                                              config_.clamp, config_.up_offset)}};
        },
        {"y"});
  }
  Inner with_gelu(Tape& tape, const Var& x_TH) const {
    const bool differentiated = tape.recording();
    const Bundle inner = tape.module("mlp", {{"x", x_TH}},
                                     [this, differentiated](Tape& t, const Bundle& in) {
                                       const ops::Gelu g = up_.gelu(t, in["x"], differentiated);
                                       return Bundle{{"v", g.x}, {"y", g.y}};
                                     },
                                     {"v", "y"});
    return {.y = inner["y"], .v = inner["v"]};
  }

  MlpConfig config_;
  int64_t chunks_;
  parallel::TensorParallel tensor_;
  ColumnLinear up_;
  RowLinear down_;
};

}  // namespace megatron::nn
