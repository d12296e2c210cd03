// A feed-forward of experts (nn/moe.h).
#pragma once

#include "models/decoder/feed_forwards/dense.h"

namespace megatron::models {

template <>
struct LayerPart<nn::MoeConfig> {
  using Config = nn::MoeConfig;
  static constexpr std::string_view kName = "moe";

  template <class Value, class F>
  static void fields(Value& m, F&& f) {
    f("num-experts", m.experts, true);
    f("moe-router-topk", m.choices, true);
    f("moe-router-score-function", m.router.score, false);
    f("moe-router-pre-softmax", m.router.softmax_first, false);
    f("moe-router-normalized", m.router.normalised, false);
    f("moe-router-topk-scaling-factor", m.router.scale, false);
    f("moe-router-num-groups", m.router.groups, false);
    f("moe-router-group-topk", m.router.chosen_groups, false);
    f("moe-router-group-best", m.router.group_best, false);
    f("moe-router-bias", m.router_bias, false);
    f("moe-router-enable-expert-bias", m.correction_bias, false);
    f("moe-apply-probs-on-input", m.weights_on_input, false);
    f("moe-latent-size", m.latent, false);
    f("moe-shared-expert-intermediate-size", m.shared_ffn, false);
    f("moe-shared-expert-gate", m.shared_gate, false);
    LayerPart<nn::MlpConfig>::fields(m.expert, f);
  }
  static void check(const DecoderValue& model, const Config& moe);
  static int64_t parameters(const Config& moe, const nn::NormConfig& norm, int64_t hidden);
  static double forward_flops(const Config& moe, int64_t hidden, int64_t length);
  static void add_facts(const Config& moe, ModelFacts& facts);
  static std::unique_ptr<Sublayer> build(nn::Builder& builder, const std::string& name,
                                         const Config& moe, const LayerPlace& place);
  static PlainRows plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                         const Config& moe, const nn::NormConfig& norm);
};

}  // namespace megatron::models
