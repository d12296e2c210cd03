// A state space after a transformer block that several layers share (SharedBlockConfig), as a
// mixer.
#pragma once

#include "models/decoder/feed_forwards/dense.h"
#include "models/decoder/mixers/attention.h"
#include "models/decoder/mixers/state_space.h"

namespace megatron::models {

// How a layer uses its block.
struct SharedUse {
  std::vector<int64_t> layers;  // all that use the block, in order
  size_t index = 0;             // of this layer among them
  int64_t number = 0;           // of this use among those of all blocks, in the order of the layers
};
SharedUse shared_use(const DecoderValue& model, int64_t layer);
// True if a layer from `first` on has a shared block, which reads the output of the embedding.
bool reads_embedded(const DecoderValue& model, int64_t first = 0);

// Parameters of the block, named after its first layer f: layers.<f>.attention.shared.norm.weight
// [2H], .attention.qkv.weight [(N+2K) D, 2H] and .attention.output.weight [H, N D],
// .mlp_norm.weight [H], .mlp.up.weight [2F, H] and .mlp.down.weight [H, F], with their biases; the
// additions of use n there are .attention.q_adapter.<n>.0.weight [r, 2H] and .1.weight [N D, r],
// k_adapter and v_adapter alike, and .mlp.up_adapter.<n>. Of each layer: <name>.projection.weight
// [H, H], <name>.norm.weight [H], and the state space's in <name>.mixer.
template <>
struct LayerPart<SharedBlockConfig> {
  using Config = SharedBlockConfig;
  using Attention = LayerPart<nn::AttentionConfig>;
  using Mlp = LayerPart<nn::MlpConfig>;
  using Space = LayerPart<nn::StateSpaceConfig>;
  static constexpr std::string_view kName = "shared-block";

  template <class Value, class F>
  static void fields(Value& s, F&& f) {
    f("shared-block", s.block, true);
    Attention::fields(s.attention, f);
    Mlp::fields(s.mlp, [&](std::string_view name, auto& field, bool always) {
      f("shared-" + std::string(name), field, always);
    });
    f("attention-adapter-rank", s.attention_rank, false);
    f("mlp-adapter-rank", s.mlp_rank, false);
    Space::fields(s.state_space, f);
  }
  static void check(const DecoderValue& model, const Config& s);
  // For a layer that is the only one with its block; and the parameters that layers share.
  static int64_t parameters(const Config& s, const nn::NormConfig& norm, int64_t hidden);
  static int64_t shared_parameters(const Config& s, const nn::NormConfig& norm, int64_t hidden);
  static double forward_flops(const Config& s, int64_t hidden, int64_t length);
  static void add_facts(const Config& s, ModelFacts& facts);
  static std::optional<RotaryUse> rotary(const Config& s) { return Attention::rotary(s.attention); }
  static std::vector<int64_t> matrices(const Config& s, std::string_view parameter);
  static std::unique_ptr<Sublayer> build(nn::Builder& builder, const std::string& name,
                                         const Config& s, const LayerPlace& place);
  static PlainRows plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                         const Config& s, const nn::NormConfig& norm);
};

}  // namespace megatron::models
