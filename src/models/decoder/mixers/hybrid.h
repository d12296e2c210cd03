// Attention and a state space side by side, as a mixer (Zuo et al. 2025).
#pragma once

#include "models/decoder/mixers/attention.h"
#include "models/decoder/mixers/state_space.h"

namespace megatron::models {

template <>
struct LayerPart<HybridConfig> {
  using Config = HybridConfig;
  using Attention = LayerPart<nn::AttentionConfig>;
  using Space = LayerPart<nn::StateSpaceConfig>;
  static constexpr std::string_view kName = "hybrid";

  template <class Value, class F>
  static void fields(Value& hybrid, F&& f) {
    Attention::fields(hybrid.attention, f);
    Space::fields(hybrid.state_space, f);
    f("attention-in-multiplier", hybrid.attention_factors.in, false);
    f("attention-out-multiplier", hybrid.attention_factors.out, false);
    f("mamba-in-multiplier", hybrid.state_space_factors.in, false);
    f("mamba-out-multiplier", hybrid.state_space_factors.out, false);
  }
  static void check(const DecoderValue& model, const Config& hybrid);
  static int64_t parameters(const Config& hybrid, const nn::NormConfig& norm, int64_t hidden) {
    return Attention::parameters(hybrid.attention, norm, hidden) +
           Space::parameters(hybrid.state_space, norm, hidden);
  }
  static double forward_flops(const Config& hybrid, int64_t hidden, int64_t length) {
    return Attention::forward_flops(hybrid.attention, hidden, length) +
           Space::forward_flops(hybrid.state_space, hidden, length);
  }
  static void add_facts(const Config& hybrid, ModelFacts& facts) {
    Attention::add_facts(hybrid.attention, facts);
    Space::add_facts(hybrid.state_space, facts);
  }
  static std::optional<RotaryUse> rotary(const Config& hybrid) {
    return Attention::rotary(hybrid.attention);
  }
  static std::vector<int64_t> matrices(const Config& hybrid, std::string_view parameter) {
    return Attention::matrices(hybrid.attention, parameter);
  }
  static std::unique_ptr<Sublayer> build(nn::Builder& builder, const std::string& name,
                                         const Config& hybrid, const LayerPlace& place);
  static PlainRows plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                         const Config& hybrid, const nn::NormConfig& norm);
};

}  // namespace megatron::models
