// A state space (nn/state_space.h) as a mixer.
#pragma once

#include "models/decoder/layer_part.h"

namespace megatron::models {

template <>
struct LayerPart<nn::StateSpaceConfig> {
  using Config = nn::StateSpaceConfig;
  static constexpr std::string_view kName = "state-space";

  template <class Value, class F>
  static void fields(Value& s, F&& f) {
    f("mamba-num-heads", s.heads, true);
    f("mamba-head-dim", s.head_size, true);
    f("mamba-num-groups", s.groups, true);
    f("mamba-state-dim", s.states, true);
    f("mamba-conv-width", s.conv_width, false);
    f("mamba-conv-bias", s.conv_bias, false);
    f("mamba-bias", s.bias, false);
    f("mamba-output-bias", s.output_bias, false);
    f("mamba-min-step", s.min_step, false);
    f("mamba-max-step", s.max_step, false);
    f("mamba-initial-min-step", s.initial_min_step, false);
    f("mamba-initial-max-step", s.initial_max_step, false);
    f("mamba-initial-step-floor", s.initial_step_floor, false);
    f("mamba-gate-order", s.order, false);
    f("mamba-norm-epsilon", s.norm_epsilon, false);
    f("mamba-multipliers", s.multipliers, false);
  }
  static void check(const DecoderValue& model, const Config& s);
  static int64_t parameters(const Config& s, const nn::NormConfig& norm, int64_t hidden);
  static double forward_flops(const Config& s, int64_t hidden, int64_t length);
  static void add_facts(const Config& s, ModelFacts& facts);
  static std::optional<RotaryUse> rotary(const Config&) { return {}; }
  static std::vector<int64_t> matrices(const Config&, std::string_view) { return {}; }
  static std::unique_ptr<Sublayer> build(nn::Builder& builder, const std::string& name,
                                         const Config& s, const LayerPlace& place);
  // The recurrence, token by token.
  static PlainRows plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                         const Config& s, const nn::NormConfig& norm);
};

}  // namespace megatron::models
