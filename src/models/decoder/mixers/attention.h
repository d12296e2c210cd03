// Attention of grouped heads (nn/attention.h) as a mixer.
#pragma once

#include "models/decoder/layer_part.h"

namespace megatron::models {

template <>
struct LayerPart<nn::AttentionConfig> {
  using Config = nn::AttentionConfig;
  static constexpr std::string_view kName = "attention";

  template <class Value, class F>
  static void fields(Value& a, F&& f) {
    f("num-attention-heads", a.heads, true);
    f("num-query-groups", a.kv_heads, true);
    f("kv-channels", a.head_size, true);
    f("qkv-bias", a.qkv_bias, true);
    f("attention-output-bias", a.output_bias, true);
    f("softmax-scale", a.scale, false);
    f("attn-logit-softcapping", a.soft_cap, false);
    f("window-size", a.window, false);
    f("attention-chunk-size", a.chunk, false);
    f("two-sided", a.two_sided, false);
    f("qk-norm", a.qk_norm, false);
    f("softmax-sinks", a.sinks, false);
    f("qkv-clip", a.qkv_clip, false);
    f("attention-output-gate", a.output_gate, false);
    f("temperature-scale", a.temperature.scale, false);
    f("temperature-step", a.temperature.step, false);
    f("rotary", a.rotary, false);
    f("relative-attention-num-buckets", a.relative.buckets, false);
    f("relative-attention-max-distance", a.relative.max_distance, false);
    f("relative-attention-shared", a.relative.shared, false);
  }
  static void check(const DecoderValue& model, const Config& a);
  static int64_t parameters(const Config& a, const nn::NormConfig& norm, int64_t hidden);
  static double forward_flops(const Config& a, int64_t hidden, int64_t length);
  // FLOPs of cross attention to a text of `encoder` tokens.
  static double cross_flops(const Config& a, int64_t hidden, int64_t length, int64_t encoder);
  static void add_facts(const Config& a, ModelFacts& facts);
  static std::optional<RotaryUse> rotary(const Config& a);
  static std::vector<int64_t> matrices(const Config& a, std::string_view parameter);
  // The same for cross attention.
  static std::vector<int64_t> cross_matrices(const Config& a, std::string_view parameter);
  static nn::AttentionPlace place_of(const Config& a, const LayerPlace& place);
  static std::unique_ptr<Sublayer> build(nn::Builder& builder, const std::string& name,
                                         const Config& a, const LayerPlace& place);
  static PlainRows plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                         const Config& a, const nn::NormConfig& norm);
  // The same for cross attention to `encoded`.
  static PlainRows plain_cross(const PlainParts& parts, const PlainRows& x,
                               const PlainRows& encoded, const std::string& name, const Config& a);
};

}  // namespace megatron::models
