// Zamba2's config.json: which layers use which shared block, and what is refused.
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/decoder/mixers/shared_block.h"
#include "text.h"
#include "unit/models/family_models.h"

namespace megatron::models {
namespace {

using testing::error_of;
using testing::expect_contains;

Json with(std::string_view key, const Json& value) {
  Json config = testing::family_config("zamba2");
  config.set(key, value);
  return config;
}

std::string refusal(std::string_view key, const Json& value) {
  return error_of([&] { model_from_config_json(with(key, value)); });
}

TEST(Zamba2, BlocksAreUsedInTurn) {
  const DecoderValue value = read_config(family_named("zamba2"), testing::family_config("zamba2"));
  const SharedUse use = shared_use(value, 4);
  EXPECT_EQ(use.layers, (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(use.index, 1u);
  EXPECT_EQ(use.number, 2);
  EXPECT_EQ(shared_use(value, 3).layers, std::vector<int64_t>{3});
  EXPECT_TRUE(reads_embedded(value, 4));
  EXPECT_FALSE(reads_embedded(value, 5));
}

TEST(Zamba2, PublishedFormsAreTheSameModel) {
  const Json config = testing::family_config("zamba2");
  const Json expected = model_from_config_json(config)->describe();
  Json older =
      with("layers_block_type", Json::Array{"mamba", "hybrid", "mamba", "hybrid", "hybrid"});
  EXPECT_EQ(model_from_config_json(older)->describe(), expected);
  EXPECT_EQ(model_from_config_json(with("layers_block_type", Json()))->describe(), expected);
  EXPECT_EQ(model_from_config_json(with("hybrid_layer_ids", Json()))->describe(), expected);
  EXPECT_EQ(model_from_config_json(with("use_long_context", true))->max_position_embeddings(),
            16384);
}

TEST(Zamba2, FactsCountSharedBlocksOnce) {
  const Model model = model_from_config_json(testing::family_config("zamba2"));
  const ModelFacts& facts = model->facts();
  EXPECT_EQ(facts.shared_blocks, 2);
  EXPECT_EQ(facts.shared_uses, 3);
  expect_contains(facts.summary(), {"2 shared blocks used 3 times"});
}

TEST(Zamba2, WrongKeysAreNamed) {
  expect_contains(refusal("num_mem_blocks", 0), {"num_mem_blocks = 0", "positive"});
  expect_contains(refusal("adapter_rank", -1), {"adapter_rank = -1", "positive"});
  expect_contains(refusal("layers_block_type", Json::Array{"hybrid"}),
                  {"num_hidden_layers = 5", "layers_block_type", "one type per layer"});
  expect_contains(
      refusal("layers_block_type", Json::Array{"mamba", "hybrid", "mlp", "hybrid", "hybrid"}),
      {"'mlp' in layers_block_type", "linear_attention, mamba, hybrid"});
  expect_contains(refusal("hybrid_layer_ids", Json::Array{1, 3, 5}),
                  {"5 in hybrid_layer_ids", "from 0 to 4"});
  expect_contains(refusal("hybrid_layer_ids", Json::Array{1, 3}),
                  {"hybrid_layer_ids = [1, 3]", "different ones"});
  Json neither = with("layers_block_type", Json());
  neither.set("hybrid_layer_ids", Json());
  expect_contains(error_of([&] { model_from_config_json(neither); }),
                  {"neither layers_block_type nor hybrid_layer_ids"});
  neither.set("hybrid_layer_ids", Json::Array());
  expect_contains(error_of([&] { model_from_config_json(neither); }), {"no layer", "mamba2"});
  expect_contains(refusal("num_attention_heads", 3), {"num_attention_heads = 3", "64"});
  expect_contains(refusal("attention_head_dim", 32), {"attention_head_dim = 32", "16"});
  expect_contains(refusal("mamba_headdim", 16), {"mamba_headdim = 16", "must be 8"});
  expect_contains(refusal("n_mamba_heads", 7), {"64", "n_mamba_heads = 7"});
  expect_contains(refusal("mamba_ngroups", 3), {"mamba_ngroups"});
}

// Layers that share a block must agree on what it is.
TEST(Zamba2, UsesOfOneBlockMustBeEqual) {
  DecoderValue value = read_config(family_named("zamba2"), testing::family_config("zamba2"));
  std::get<SharedBlockConfig>(value.layers[4].mixer).mlp.ffn += 8;
  expect_contains(error_of([&] { value.check(); }), {"share block 0 differ"});
  value = read_config(family_named("zamba2"), testing::family_config("zamba2"));
  std::get<SharedBlockConfig>(value.layers[4].mixer).mlp_rank += 1;
  value.check();
  expect_contains(obstacle(family_named("zamba2"), value), {"mlp-adapter-rank"});
}

}  // namespace
}  // namespace megatron::models
