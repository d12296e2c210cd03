#include "models/decoder/mixers/hybrid.h"

#include <cmath>

#include "base/error.h"
#include "ops/elementwise.h"
#include "ops/scale.h"

namespace megatron::models {
namespace {

using HybridMixer = LayerPart<HybridConfig>;

class HybridSublayer final : public Sublayer {
 public:
  HybridSublayer(nn::Builder& builder, const std::string& name, const HybridConfig& config,
                 const LayerPlace& place)
      : config_(config),
        attention_(HybridMixer::Attention::build(builder, name, config.attention, place)),
        state_space_(HybridMixer::Space::build(builder, name, config.state_space, place)) {}
  Var operator()(Tape& tape, const Var& x_TH, const nn::Batch& batch, bool train) const override {
    const auto scaled = [&](const Sublayer& part, const HybridConfig::Factors& factors) {
      return ops::scale(tape, part(tape, ops::scale(tape, x_TH, factors.in), batch, train),
                        factors.out);
    };
    const Var space = scaled(*state_space_, config_.state_space_factors);
    return ops::add(tape, space, scaled(*attention_, config_.attention_factors));
  }
  nn::LayerCache cache() const override {
    nn::LayerCache both = attention_->cache();
    both.slot = state_space_->cache().slot;
    return both;
  }

 private:
  HybridConfig config_;
  std::unique_ptr<Sublayer> attention_, state_space_;
};

void add(PlainRows& to, const PlainRows& x, double factor) {
  for (size_t t = 0; t < to.size(); ++t)
    for (size_t h = 0; h < to[t].size(); ++h) to[t][h] += factor * x[t][h];
}

}  // namespace

void HybridMixer::check(const DecoderValue& model, const HybridConfig& hybrid) {
  Attention::check(model, hybrid.attention);
  Space::check(model, hybrid.state_space);
  MG_CHECK(!hybrid.attention.two_sided && hybrid.attention.relative.buckets == 0,
           "attention in parallel with a state space must be causal, without relative positions");
  for (const HybridConfig::Factors& factors :
       {hybrid.attention_factors, hybrid.state_space_factors})
    for (const double factor : {factors.in, factors.out})
      MG_CHECK(
          std::isfinite(factor) && factor != 0,
          "a multiplier of a layer's attention or state space is {}; it must be finite and not "
          "0",
          factor);
}

std::unique_ptr<Sublayer> HybridMixer::build(nn::Builder& builder, const std::string& name,
                                             const HybridConfig& hybrid, const LayerPlace& place) {
  return std::make_unique<HybridSublayer>(builder, name, hybrid, place);
}

PlainRows HybridMixer::plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                             const HybridConfig& hybrid, const nn::NormConfig& norm) {
  PlainRows y(x.size(), PlainRow(static_cast<size_t>(parts.model().hidden_size))), of_attention = y,
                                                                                   of_space = y;
  add(of_attention, x, hybrid.attention_factors.in);
  add(of_space, x, hybrid.state_space_factors.in);
  add(y, Attention::plain(parts, of_attention, name, hybrid.attention, norm),
      hybrid.attention_factors.out);
  add(y, Space::plain(parts, of_space, name, hybrid.state_space, norm),
      hybrid.state_space_factors.out);
  return y;
}

}  // namespace megatron::models
