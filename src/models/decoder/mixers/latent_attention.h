// Multi-head latent attention (nn/latent_attention.h) as a mixer.
#pragma once

#include "models/decoder/layer_part.h"

namespace megatron::models {

template <>
struct LayerPart<nn::LatentAttentionConfig> {
  using Config = nn::LatentAttentionConfig;
  static constexpr std::string_view kName = "latent-attention";

  template <class Value, class F>
  static void fields(Value& a, F&& f) {
    f("num-attention-heads", a.heads, true);
    f("q-lora-rank", a.query_rank, false);
    f("kv-lora-rank", a.latent_rank, true);
    f("qk-head-dim", a.head.plain, true);
    f("qk-pos-emb-head-dim", a.head.rotated, true);
    f("v-head-dim", a.head.value, true);
    f("latent-norm", a.normalized, false);
    f("latent-norm-epsilon", a.norm_epsilon, false);
    f("latent-bias", a.bias, false);
    f("attention-output-bias", a.output_bias, false);
    f("rotary", a.rotary, false);
  }
  static void check(const DecoderValue& model, const Config& a);
  static int64_t parameters(const Config& a, const nn::NormConfig& norm, int64_t hidden);
  static double forward_flops(const Config& a, int64_t hidden, int64_t length);
  static void add_facts(const Config& a, ModelFacts& facts);
  static std::optional<RotaryUse> rotary(const Config& a);
  static std::vector<int64_t> matrices(const Config& a, std::string_view parameter);
  static std::unique_ptr<Sublayer> build(nn::Builder& builder, const std::string& name,
                                         const Config& a, const LayerPlace& place);
  static PlainRows plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                         const Config& a, const nn::NormConfig& norm);
};

}  // namespace megatron::models
