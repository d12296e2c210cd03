// State spaces, alone, between layers with attention and beside it: texts that are read in pieces.
#include "base/error.h"
#include "golden/inference/bits.h"
#include "golden/inference/shared_requests.h"
#include "text.h"

namespace megatron::testing {
namespace {

using inference::Engine;

// Heads whose size is no multiple of a vector.
constexpr const char* kSpace = R"("mamba-num-heads": 4, "mamba-head-dim": 6, "mamba-num-groups": 2,
    "mamba-state-dim": 5, "mamba-bias": true)";
constexpr const char* kAttention = R"("num-attention-heads": 4, "num-query-groups": 2,
    "kv-channels": 6, "qkv-bias": false, "attention-output-bias": false)";

// mixers: the layers, each with its mixer alone. rotary: the model's table; or none.
models::Model model_of(const std::vector<std::string>& mixers, const std::string& rotary = "") {
  const std::string norm = R"("normalization": "RMSNorm", "norm-epsilon": 1e-5)";
  std::string layers;
  for (const std::string& mixer : mixers)
    layers += fmt::format(R"({}{{"mixer": {}, "feed-forward": "none", {}}})",
                          layers.empty() ? "" : ", ", mixer, norm);
  return models::model_from_config_json(Json::parse(fmt::format(
      R"({{"model_type": "megatron", "hidden_dropout": 0, "attention_dropout": 0,
    "initializer_range": 0.3, "model": {{
      "num-layers": {}, "vocab-size": {}, "hidden-size": 24, "max-position-embeddings": 256,
      "untied": false, "layers": [{}], "final-norm": {{{}}}{}}}}})",
      mixers.size(), kSharedVocabulary, layers, norm, rotary)));
}

models::Model alone() {
  const std::string space = fmt::format(R"("state-space", {})", kSpace);
  return model_of({space, space});
}
models::Model with_attention() {
  return model_of({fmt::format(R"("state-space", {})", kSpace),
                   fmt::format(R"("attention", {})", kAttention),
                   fmt::format(R"("hybrid", {}, {}, "mamba-gate-order": "gate-only",
                     "mamba-conv-width": 2)",
                               kAttention, kSpace)});
}

// Two uses of one block, with adapters of their own, and one of another.
models::Model with_shared_blocks() {
  const auto use = [](int block) {
    return fmt::format(R"("shared-block", "shared-block": {}, {}, {}, "softmax-scale": 0.5,
      "rotary": "default", "shared-ffn-hidden-size": 20, "shared-activation": "gelu_erf",
      "shared-gated": true, "shared-mlp-bias": false, "attention-adapter-rank": 3,
      "mlp-adapter-rank": 2, "mixer-norm": false)",
                       block, kAttention, kSpace);
  };
  return model_of({use(0), use(1), fmt::format(R"("state-space", {})", kSpace), use(0)},
                  R"(, "rotary.default": {"rotary-base": 100})");
}

TEST(StateSpaces, GiveTheBitsOfOnePass) {
  for (const DType type : {DType::f32, DType::bf16}) {
    RandomModel m(with_attention(), type);
    expect_bits_of_one_pass(m, {1, 250}, {1, 3}, {1, 7, 64, 100, 131});
    RandomModel shared(with_shared_blocks(), type);
    expect_bits_of_one_pass(shared, {1, 150}, {1, 3}, {1, 64, 100});
  }
}

// Each use of a block has pages for its keys.
TEST(StateSpaces, SharedBlocksKeepTheKeysOfEachUse) {
  RandomModel m(with_shared_blocks(), DType::f32);
  const std::vector<nn::LayerCache> caches = m.model.layer_caches();
  ASSERT_EQ(caches.size(), 4u);
  for (const size_t layer : {0, 1, 3}) {
    EXPECT_EQ(caches[layer].kv_heads, 2);
    EXPECT_EQ(caches[layer].slot_bytes(), caches[2].slot_bytes());
  }
  EXPECT_EQ(caches[2].kv_heads, 0);
}

TEST(StateSpaces, GiveEachRequestWhatItGetsAlone) {
  RandomModel m(with_attention(), DType::f32);
  expect_results_of_each_alone(m, 60);
}

TEST(StateSpaces, GiveEachRequestWhatItGetsAloneWithoutAttentionToo) {
  RandomModel m(alone(), DType::bf16);
  expect_results_of_each_alone(m, 60, false);
}

TEST(StateSpaces, ARequestThatGaveUpItsSlotContinuesFromASnapshot) {
  RandomModel m(alone(), DType::f32);
  expect_texts_continue_from_snapshots(m, 90, 50, 64);
}

TEST(StateSpaces, NeedBlocksOfWholeChunks) {
  RandomModel m(alone(), DType::f32);
  expect_contains(error_of([&] { Engine(m.model, m.runtime, {.block_size = 96}); }),
                  {"--inference-dynamic-batching-block-size", "96", "64"});
}

// A slot of each layer has the last inputs of the convolution, the state before the chunk, and of
// the chunk's tokens x, b and the steps.
TEST(StateSpaces, KeepSlotsOfAConstantSize) {
  RandomModel m(alone(), DType::bf16);
  const std::vector<nn::LayerCache> caches = m.model.layer_caches();
  ASSERT_EQ(caches.size(), 2u);
  EXPECT_EQ(caches[0].slot_bytes(),
            2 * 3 * (24 + 20) + 4 * 24 * 5 + 2 * 64 * (24 + 10) + 4 * 64 * 4);
}

}  // namespace
}  // namespace megatron::testing
