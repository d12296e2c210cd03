// Replacements of a mixer or a feed-forward (simple_parts.h).
#pragma once

#include "models/decoder/layer_part.h"

namespace megatron::models {

template <>
struct LayerPart<LinearConfig> {
  static constexpr std::string_view kName = "linear";

  template <class Value, class F>
  static void fields(Value&, F&&) {}
  static void check(const DecoderValue&, const LinearConfig&) {}
  static int64_t parameters(const LinearConfig&, const nn::NormConfig&, int64_t hidden) {
    return hidden * hidden;
  }
  static double forward_flops(const LinearConfig&, int64_t hidden, int64_t length) {
    return 2 * static_cast<double>(length) * static_cast<double>(hidden * hidden);
  }
  static void add_facts(const LinearConfig&, ModelFacts&) {}
  static std::optional<RotaryUse> rotary(const LinearConfig&) { return {}; }
  static std::vector<int64_t> matrices(const LinearConfig&, std::string_view) { return {}; }
  static std::unique_ptr<Sublayer> build(nn::Builder& builder, const std::string& name,
                                         const LinearConfig&, const LayerPlace& place);
  static PlainRows plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                         const LinearConfig&, const nn::NormConfig&) {
    return parts.linear(x, name + ".linear", static_cast<int64_t>(x.at(0).size()), false);
  }
};

template <>
struct LayerPart<NoOp> {
  static constexpr std::string_view kName = "none";

  template <class Value, class F>
  static void fields(Value&, F&&) {}
  static void check(const DecoderValue&, const NoOp&) {}
  static int64_t parameters(const NoOp&, const nn::NormConfig&, int64_t) { return 0; }
  static double forward_flops(const NoOp&, int64_t, int64_t) { return 0; }
  static void add_facts(const NoOp&, ModelFacts&) {}
  static std::optional<RotaryUse> rotary(const NoOp&) { return {}; }
  static std::vector<int64_t> matrices(const NoOp&, std::string_view) { return {}; }
  static std::unique_ptr<Sublayer> build(nn::Builder&, const std::string&, const NoOp&,
                                         const LayerPlace&) {
    return nullptr;
  }
  static PlainRows plain(const PlainParts&, const PlainRows& x, const std::string&, const NoOp&,
                         const nn::NormConfig&) {
    return x;
  }
};

}  // namespace megatron::models
