// The feed-forward that every token passes through (nn/mlp.h).
#pragma once

#include "models/decoder/layer_part.h"

namespace megatron::models {

template <>
struct LayerPart<nn::MlpConfig> {
  using Config = nn::MlpConfig;
  static constexpr std::string_view kName = "dense";

  template <class Value, class F>
  static void fields(Value& m, F&& f) {
    f("ffn-hidden-size", m.ffn, true);
    f("activation", m.activation, true);
    f("gated", m.gated, true);
    f("mlp-bias", m.bias, true);
    f("activation-clamp", m.clamp, false);
    f("glu-linear-offset", m.up_offset, false);
    f("gate-multiplier", m.gate_multiplier, false);
    f("mlp-output-multiplier", m.output_multiplier, false);
  }
  static void check(const DecoderValue& model, const Config& mlp) {
    check(model, mlp, "ffn-hidden-size");
  }
  static void check(const DecoderValue& model, const Config& mlp, std::string_view width_flag);
  static int64_t parameters(const Config& mlp, const nn::NormConfig& norm, int64_t hidden);
  static double forward_flops(const Config& mlp, int64_t hidden, int64_t length);
  static FeedForwardFacts facts(const Config& mlp);
  static void add_facts(const Config& mlp, ModelFacts& facts);
  static std::unique_ptr<Sublayer> build(nn::Builder& builder, const std::string& name,
                                         const Config& mlp, const LayerPlace& place);
  static PlainRows plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                         const Config& mlp, const nn::NormConfig& norm);
  // f of the plain implementation, of the up-projection of one token.
  static PlainRow plain_activated(const PlainRow& row, const Config& mlp);
};

}  // namespace megatron::models
