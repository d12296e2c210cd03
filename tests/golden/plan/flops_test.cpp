#include "plan/flops.h"

#include <gtest/gtest.h>

#include "models/adapters/lora_config.h"
#include "models/model_flags.h"
#include "models/stage.h"
#include "plan/parameters.h"
#include "unit/models/family_models.h"

namespace megatron::plan {
namespace {

models::Model gpt2_124m() {
  return models::model_from_flags(
      {.num_layers = 12, .hidden_size = 768, .num_attention_heads = 12, .vocab_size = 50257}, 1024);
}

// Hidden 64, 8 heads of 8, 2 key heads, feed-forward 192, 2 layers, 1000 tokens, untied output.
models::ModelFlags llama_flags() {
  models::ModelFlags f{
      .num_layers = 2, .hidden_size = 64, .num_attention_heads = 8, .ffn_hidden_size = 192};
  f.vocab_size = 1000;
  f.group_query_attention = true;
  f.num_query_groups = 2;
  f.position_embedding = models::PositionEmbedding::rope;
  f.normalization = nn::Normalization::rms_norm;
  f.swiglu = f.untie = true;
  f.add_bias_linear = false;
  return f;
}
models::Model small_llama() { return models::model_from_flags(llama_flags(), 128); }

// Weights of the products: 12 layers x 12 x 768^2 = 84 934 656, head 50257 x 768 = 38 597 376.
// Forward of 1024 tokens: 2 x 1024 x 123 532 032 = 252 993 601 536, and causal attention 12 x (2 x
// 2 x 1024^2 x 768) / 2 = 19 327 352 832.
TEST(Flops, Gpt2) {
  EXPECT_DOUBLE_EQ(gpt2_124m()->training_flops(1024), 3.0 * (252993601536.0 + 19327352832.0));
}

// A layer: 64 x (64 + 32) + 64 x 64 + 3 x 64 x 192 = 47 104 weights; head 64 000. Forward of 128
// tokens: 2 x 128 x (94 208 + 64 000) = 40 501 248, and attention 2 x (2 x 2 x 128^2 x 64) / 2 = 4
// 194 304.
TEST(Flops, Llama) {
  EXPECT_DOUBLE_EQ(small_llama()->training_flops(128), 3.0 * (40501248.0 + 4194304.0));
}

std::unique_ptr<models::Stage> whole_on(Runtime& meta, const models::Model& model) {
  return model.build(meta, DType::f32, 0);
}

TEST(Flops, AreTheProductsThatEveryFamilyExecutes) {
  for (const auto& [name, model] : testing::family_models()) {
    for (const int64_t length : {1, 5, 24, 31}) {
      if (length > model->max_position_embeddings()) continue;
      Runtime meta({DeviceKind::meta, 0}, 1);
      EXPECT_DOUBLE_EQ(model->training_flops(length),
                       executed_flops(*whole_on(meta, model), meta, length))
          << name << " " << length;
    }
  }
}

TEST(Flops, AreTheProductsThatEveryEncoderExecutes) {
  for (const char* name : testing::kEncoderDirectories) {
    const models::Model model = models::model_from_config_json(testing::family_config(name));
    for (const int64_t length : {5, 24}) {
      Runtime meta({DeviceKind::meta, 0}, 1);
      EXPECT_DOUBLE_EQ(model->training_flops(length),
                       executed_flops(*whole_on(meta, model), meta, length))
          << name << " " << length;
    }
  }
}

// On the same layers: a head for pairs is a pooler and two labels, the mean of a text is attention,
// and a model without a head has nothing behind its layers.
TEST(Flops, OfAnEncoderAreThoseOfItsHead) {
  const auto with_class = [](const char* name, const char* architecture) {
    Json config = testing::family_config(name);
    config.set("architectures", Json::Array{architecture});
    return config;
  };
  constexpr double kLength = 24;
  const auto flops = [](const Json& config) {
    return models::model_from_config_json(config)->training_flops(static_cast<int64_t>(kLength));
  };
  const double masked = flops(with_class("bert", "BertForMaskedLM"));
  const models::Model bert = models::model_from_config_json(with_class("bert", "BertModel"));
  const auto hidden = static_cast<double>(bert->hidden_size()),
             vocabulary = static_cast<double>(bert->vocab_size());
  EXPECT_DOUBLE_EQ(flops(with_class("bert", "BertForPreTraining")) - masked,
                   3 * 2 * kLength * hidden * (hidden + 2));
  EXPECT_DOUBLE_EQ(masked - bert->training_flops(static_cast<int64_t>(kLength)),
                   3 * 2 * kLength * hidden * (hidden + vocabulary));
  Json mean = with_class("modernbert", "ModernBertForSequenceClassification");
  mean.set("classifier_pooling", "mean");
  const models::Model model = models::model_from_config_json(mean);
  Runtime meta({DeviceKind::meta, 0}, 1);
  EXPECT_DOUBLE_EQ(model->training_flops(24), executed_flops(*whole_on(meta, model), meta, 24));
}

TEST(Flops, AreTheProductsThatEveryEncoderDecoderExecutes) {
  for (const char* name : testing::kEncoderDecoderDirectories) {
    const models::Model model = models::model_from_config_json(testing::family_config(name));
    for (const models::TextLength length : {models::TextLength(9, 24), models::TextLength(24, 5)}) {
      Runtime meta({DeviceKind::meta, 0}, 1);
      EXPECT_DOUBLE_EQ(model->training_flops(length),
                       executed_flops(*whole_on(meta, model), meta, length))
          << name << " " << length.tokens;
    }
  }
}

TEST(Flops, AreThoseOfMultiTokenPrediction) {
  for (const char* name : {"glm4_moe", "deepseek_v3"}) {
    const models::Model model = models::model_from_config_json(testing::family_config(name))
                                    ->with({.prediction = models::PredictionChange{.depths = 2}});
    Runtime meta({DeviceKind::meta, 0}, 1);
    EXPECT_DOUBLE_EQ(model->training_flops(24), executed_flops(*whole_on(meta, model), meta, 24))
        << name;
  }
}

constexpr double kTokens = 128, kAttention = 2097152, kHead = 64 * 1000,
                 kLayer = 47104;  // of small_llama(): attention, and weights
double products(double weights) { return 2 * kTokens * weights; }

// The embedding and the first layer are frozen, so that nothing of them runs backward.
TEST(Flops, OfFrozenParametersAreThoseThatAreExecuted) {
  Runtime meta({DeviceKind::meta, 0}, 1);
  const auto whole = whole_on(meta, small_llama());
  for (parallel::ParameterSpec* placed : whole->parameters())
    placed->parameter.trainable = !placed->parameter.name.starts_with("embedding.") &&
                                  !placed->parameter.name.starts_with("layers.0.");
  EXPECT_DOUBLE_EQ(
      executed_flops(*whole, meta, 128),
      products(kLayer) + kAttention + 3 * (products(kLayer) + kAttention + products(kHead)));
}

// Adapters of the queries: 4 x 64 and 64 x 4. The first layer has no gradient of its input.
TEST(Flops, OfAdaptersHaveNoWeightGradientsOfTheModel) {
  models::LoraConfig config{.rank = 4, .alpha = 4};
  config.targets.names = {"q_proj"};
  const models::Model model = small_llama()->with(
      {.adapter = std::make_shared<const models::LoraConfig>(std::move(config))});
  Runtime meta({DeviceKind::meta, 0}, 1);
  EXPECT_DOUBLE_EQ(executed_flops(*whole_on(meta, model), meta, 128),
                   2 * (2 * products(kLayer) + products(kHead)) + 6 * kAttention -
                       products(64 * 96) + products(4 * 64) * (2 * 6 - 1));
}

TEST(Parameters, KnownCounts) {
  EXPECT_EQ(gpt2_124m()->parameter_count(), 124439808);
  EXPECT_EQ(small_llama()->parameter_count(), 2 * 47104 + 5 * 64 + 2 * 64000);
}

TEST(Parameters, AreThoseOfTheModel) {
  models::ModelFlags tied = llama_flags(), wide = llama_flags();
  tied.untie = false;
  tied.add_bias_linear = true;
  wide.kv_channels = 24;
  wide.add_qkv_bias = true;
  for (const models::Model& model :
       {gpt2_124m(), small_llama(), models::model_from_flags(tied, 128),
        models::model_from_flags(wide, 128)}) {
    Runtime meta({DeviceKind::meta, 0}, 1);
    const auto whole = model.build(meta, DType::bf16, 0);
    int64_t elements = 0;
    for (const parallel::ParameterSpec* placed : whole->parameters())
      elements += placed->parameter.value.elements();
    EXPECT_EQ(model->parameter_count(), elements);
    Plan plan{.parameters = count_parameters(*whole)};
    EXPECT_EQ(plan.parameter_count(), elements);
  }
}

std::map<std::string, int64_t> counts(const models::Model& model) {
  Runtime meta({DeviceKind::meta, 0}, 1);
  std::map<std::string, int64_t> found;
  for (const ParameterCount& p : count_parameters(*model.build(meta, DType::bf16, 0)))
    EXPECT_TRUE(found.emplace(p.span + " " + p.group, p.count).second);
  return found;
}

TEST(Parameters, ByClassAndSpan) {
  const auto gpt2 = counts(gpt2_124m());
  EXPECT_EQ(gpt2.size(), 2 + 12 * 3 + 1);
  EXPECT_EQ(gpt2.at("embedding embedding"), 50257 * 768);
  EXPECT_EQ(gpt2.at("embedding position"), 1024 * 768);
  EXPECT_EQ(gpt2.at("layers.11 norm"), 4 * 768);
  EXPECT_EQ(gpt2.at("layers.11 attention"), 4 * 768 * 768 + 4 * 768);
  EXPECT_EQ(gpt2.at("layers.11 mlp"), 8 * 768 * 768 + 5 * 768);
  EXPECT_EQ(gpt2.at("head norm"), 2 * 768);
  const auto llama = counts(small_llama());
  EXPECT_EQ(llama.size(), 1 + 2 * 3 + 2);
  EXPECT_EQ(llama.at("layers.0 attention"), 64 * 96 + 64 * 64);
  EXPECT_EQ(llama.at("layers.0 mlp"), 3 * 64 * 192);
  EXPECT_EQ(llama.at("head output"), 64000);
}

// For 124M, the model's formula and Megatron-LM's differ only by the padded rows of the vocabulary.
TEST(Flops, FormulasOfAStep) {
  const std::vector<FlopCount> flops =
      step_flops(gpt2_124m(), gpt2_124m()->training_flops(1024), 50304, 512, 1024);
  ASSERT_EQ(flops.size(), 3U);
  EXPECT_EQ(flops[0].formula, "model");
  EXPECT_EQ(flops[1].formula, "megatron");
  EXPECT_EQ(flops[2].formula, "megatron_full_attention");
  EXPECT_EQ(flops[1].flops, 418398534107136.0);
  EXPECT_DOUBLE_EQ(flops[1].flops - flops[0].flops, 6.0 * 512 * 1024 * 768 * (50304 - 50257));
  EXPECT_DOUBLE_EQ(flops[2].flops - flops[1].flops, 6.0 * 512 * 1024 * 1024 * 768 * 12);
}

}  // namespace
}  // namespace megatron::plan
