// Facts about a model that other rooms use, and flags that accompany a model directory.
#include "models/facts.h"

#include <gtest/gtest.h>

#include "models/model.h"
#include "models/model_flags.h"
#include "text.h"
#include "unit/models/family_models.h"

namespace megatron::models {
namespace {

ModelFlags llama_flags() {
  ModelFlags flags{.num_layers = 4, .hidden_size = 48, .num_attention_heads = 4, .vocab_size = 160};
  flags.group_query_attention = true;
  flags.num_query_groups = 2;
  flags.ffn_hidden_size = 88;
  flags.position_embedding = PositionEmbedding::rope;
  flags.normalization = nn::Normalization::rms_norm;
  flags.swiglu = true;
  flags.untie = true;
  flags.add_bias_linear = false;
  return flags;
}

TEST(Facts, OfADenseModel) {
  const ModelFacts facts = model_from_flags(llama_flags(), 32)->facts();
  EXPECT_EQ(facts.family, "llama");
  EXPECT_EQ(facts.attention->head_size, 12);
  EXPECT_TRUE(facts.feed_forward->gated);
  EXPECT_TRUE(facts.rms_norm);
  EXPECT_FALSE(facts.experts.has_value());
  EXPECT_EQ(facts.summary(),
            "4 layers, hidden 48, feed-forward 88, 4 heads (2 key heads) of 12, vocabulary 160, "
            "32 positions, rotary, untied");
}

TEST(Facts, OfExperts) {
  ModelFlags flags = llama_flags();
  flags.moe.num_experts = 8;
  flags.moe.topk = 3;
  flags.moe.layer_freq = "[0,1,1,1]";
  flags.moe.ffn_hidden_size = 20;
  flags.moe.latent_size = 24;
  flags.moe.shared_ffn = 28;
  const ModelFacts facts = model_from_flags(flags, 32)->facts();
  EXPECT_EQ(facts.experts->layers, (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(facts.experts->latent, 24);
  EXPECT_EQ(facts.feed_forward->width, 88);
  EXPECT_TRUE(testing::has(facts.summary(),
                           ", feed-forward 88, 8 experts of 20 in 3 layers, 3 per token and a "
                           "shared one of 28, 4 heads"))
      << facts.summary();
  flags.moe.layer_freq = "1";
  const ModelFacts everywhere = model_from_flags(flags, 32)->facts();
  EXPECT_FALSE(everywhere.feed_forward.has_value());
  EXPECT_TRUE(testing::has(everywhere.summary(), "hidden 48, 8 experts of 20, 3 per token"));
}

// Flags describe a difference of a model by what they change, whatever else the model has.
TEST(Facts, FlagsDisagree) {
  const Model model = model_from_flags(llama_flags(), 32);
  const auto stated = [&](const std::function<void(ModelFlags&)>& change) {
    ModelFlags flags;
    change(flags);
    const auto [own, said] = disagreement(model, flags);
    return own.dump() + said.dump();
  };
  EXPECT_EQ(stated([](ModelFlags&) {}), "{}{}");
  EXPECT_EQ(stated([](ModelFlags& f) {
              f = llama_flags();
              f.ffn_hidden_size.reset();  // by default, it follows from the model's width
            }),
            "{}{}");
  EXPECT_EQ(stated([](ModelFlags& f) { f.num_layers = 5; }),
            R"({"num-layers": 4}{"num-layers": 5})");
  EXPECT_EQ(
      stated([](ModelFlags& f) { f.rotary_base = 500; }),
      R"({"rotary.default": {"rotary-base": 10000.0}}{"rotary.default": {"rotary-base": 500.0}})");
  EXPECT_EQ(stated([](ModelFlags& f) { f.activation_clamp = 2; }), R"({}{"activation-clamp": 2.0})")
      << "of the gated block that the model has";
  EXPECT_EQ(stated([](ModelFlags& f) { f.add_qkv_bias = true; }),
            R"({"qkv-bias": false}{"qkv-bias": true})");
  EXPECT_TRUE(testing::has(stated([](ModelFlags& f) { f.squared_relu = true; }), "squared_relu"));
  EXPECT_TRUE(testing::has(stated([](ModelFlags& f) { f.moe.num_experts = 4; }),
                           R"({"feed-forward": "moe")"));
}

TEST(Facts, FlagsAgreeWithTheFamiliesTheyCanDescribe) {
  const Model model = model_from_config_json(testing::family_config("qwen2_moe"));
  ModelFlags flags;
  flags.swiglu = true;
  flags.moe.shared_expert_gate = true;
  flags.moe.shared_ffn = model->facts().experts->shared_width;
  EXPECT_EQ(disagreement(model, flags).flags.dump(), "{}");
  flags.moe.num_experts = 7;
  EXPECT_EQ(disagreement(model, flags).flags.dump(), R"({"num-experts": 7})");
}

}  // namespace
}  // namespace megatron::models
