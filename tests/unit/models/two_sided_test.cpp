// Attention that sees later tokens, too: what models with it refuse, and what they are said to be.
#include <gtest/gtest.h>

#include "models/stage.h"
#include "text.h"
#include "unit/models/family_models.h"

namespace megatron::models {
namespace {

DecoderValue encoder() {
  DecoderValue value = testing::plain_decoder();
  for (LayerValue& layer : value.layers) layer.attention()->two_sided = true;
  return value;
}

TEST(TwoSided, IsAFact) {
  EXPECT_TRUE(decoder_model(encoder())->facts().two_sided);
  EXPECT_FALSE(decoder_model(testing::plain_decoder())->facts().two_sided);
  DecoderValue mixed = testing::plain_decoder();
  mixed.layers.back().attention()->two_sided = true;
  EXPECT_TRUE(decoder_model(mixed)->facts().two_sided) << "in the last layer";
}

// 4 heads of 8 in 3 layers: the causal half of the pairs, or all; two products of 2 FLOPs, three
// times.
TEST(TwoSided, CountsAllPairs) {
  const double causal = decoder_model(testing::plain_decoder())->training_flops(20),
               all = decoder_model(encoder())->training_flops(20);
  EXPECT_DOUBLE_EQ(all - causal, 3.0 * 3 * 2 * 2 * 4 * 8 * (20 * 20 / 2));
  const nn::AttentionConfig window{.window = 3, .two_sided = true};
  EXPECT_EQ(window.seen_pairs(6), 3 + 4 + 5 + 5 + 4 + 3);
  EXPECT_EQ(window.seen_pairs(2), 4);
}

TEST(TwoSided, RefusesWhatIsForCausalAttention) {
  const auto refusal = [](auto change) {
    DecoderValue value = encoder();
    change(value);
    return testing::error_of([&] { decoder_model(value); });
  };
  testing::expect_contains(refusal([](DecoderValue& v) { v.layers[1].attention()->chunk = 4; }),
                           {"two-sided", "chunk size of 4", "--window-size"});
  testing::expect_contains(refusal([](DecoderValue& v) {
                             v.layers[1].attention()->temperature = {.scale = 0.5, .step = 3};
                           }),
                           {"two-sided", "temperature of 0.5"});
  testing::expect_contains(
      refusal([](DecoderValue& v) { v.prediction = {.depths = 2, .layer = v.layers.back()}; }),
      {"two-sided", "--mtp-num-layers 2"});
}

TEST(TwoSided, KeepsNoKeysForGeneration) {
  Runtime meta({DeviceKind::meta, 0}, 1);
  const auto stage = decoder_model(encoder()).build(meta, DType::f32, 0);
  testing::expect_contains(testing::error_of([&] { stage->layer_caches(); }),
                           {"encoder", "use a decoder"});
}

}  // namespace
}  // namespace megatron::models
