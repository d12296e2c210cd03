// What encoders and encoder-decoders refuse, and what their parameters are said to be.
#include <gtest/gtest.h>

#include <algorithm>

#include "models/stage.h"
#include "text.h"
#include "unit/models/family_models.h"

namespace megatron::models {
namespace {

using testing::error_of, testing::expect_contains, testing::family_config;

// The error of a config.json with one other key.
std::string refusal(const char* directory, const char* key, const Json& value) {
  Json config = family_config(directory);
  config.set(key, value);
  return error_of([&] { model_from_config_json(config); });
}

Model with_class(const char* directory, const char* architecture) {
  Json config = family_config(directory);
  config.set("architectures", Json::Array{architecture});
  return model_from_config_json(config);
}

DecoderValue t5() {
  return decoder_from_json(model_from_config_json(family_config("t5"))->describe());
}

// As many layers as no machine has memory for.
TEST(EncoderDecoders, RefuseTooManyLayersBeforeTheyAreMade) {
  for (const char* key : {"num_layers", "num_decoder_layers"})
    expect_contains(refusal("t5", key, Json(int64_t{1} << 39)), {key, "549755813888", "65536"});
}

TEST(EncoderDecoders, RefuseWhatCrossAttentionDoesNotRead) {
  const Json model = model_from_config_json(family_config("t5"))->describe();
  Json::Array layers = model["layers"].as_array();
  for (Json& layer : layers) {
    if (!layer.contains("cross-attention")) continue;
    Json cross = layer["cross-attention"];
    cross.set("window-size", 4);
    layer.set("cross-attention", cross);
  }
  Json changed = model;
  changed.set("layers", layers);
  expect_contains(error_of([&] { decoder_from_json(changed); }), {"unknown", "window-size"});
  DecoderValue value = t5();
  value.layers.back().cross->two_sided = true;
  expect_contains(error_of([&] { decoder_model(value); }),
                  {"cross attention", "no other settings"});
}

TEST(EncoderDecoders, RefuseRelativePositionsThatCannotBeShared) {
  const auto refused = [](auto change) {
    DecoderValue value = t5();
    change(value);
    return error_of([&] { decoder_model(value); });
  };
  const auto relative = [](DecoderValue& v, int64_t layer) -> nn::RelativeBuckets& {
    return v.layers.at(static_cast<size_t>(layer)).attention()->relative;
  };
  for (const bool decodes : {false, true})
    expect_contains(refused([&](DecoderValue& v) {
                      relative(v, decodes ? v.encoder_layers : 0).shared = true;
                    }),
                    {"shares the relative positions", "first of its stack"});
  expect_contains(refused([&](DecoderValue& v) { relative(v, 1).max_distance += 8; }),
                  {"layer 1 shares", "same distances"});
  expect_contains(refused([](DecoderValue& v) { v.learned_positions = true; }),
                  {"both relative and learned positions"});
  expect_contains(refused([](DecoderValue& v) { v.layers[0].attention()->kv_heads = 1; }),
                  {"--num-query-groups is 1", "relative positions"});
}

// Muon takes matrices one by one, and tables of numbers for heads not at all.
TEST(EncoderDecoders, SayWhatTheirParametersAre) {
  const Model model = model_from_config_json(family_config("t5"));
  Runtime meta({DeviceKind::meta, 0}, 1);
  const auto stage = model.build(meta, DType::f32, 0);
  const nn::AttentionConfig cross = *t5().layers.back().cross;
  const int64_t rows = cross.kv_heads * cross.head_size;
  int matrices = 0, tables = 0;
  for (const parallel::ParameterSpec* placed : stage->parameters()) {
    const std::string& name = placed->parameter.name;
    if (name.ends_with(".cross_attention.kv.weight")) {
      EXPECT_EQ(placed->matrices, (std::vector<int64_t>{rows, rows})) << name;
      ++matrices;
    }
    const bool table = name.ends_with(".relative_bias.weight");
    EXPECT_EQ(placed->role == parallel::Role::distances, table) << name;
    EXPECT_FALSE(table && placed->grows_both_ways) << name;
    tables += table ? 1 : 0;
  }
  EXPECT_EQ(matrices, model->num_layers() - model->facts().encoder_layers);
  EXPECT_EQ(tables, 2);
}

TEST(ScoreHeads, OfTokensAreForEncoders) {
  for (const ScoredTokens scored : {ScoredTokens::each_token, ScoredTokens::span}) {
    const auto with_head = [&](const Model& model) {
      return model->with({.score_head = ScoreHead{.label_names = {"start", "end"},
                                                  .padding = model->facts().score_padding,
                                                  .scored = scored}});
    };
    for (const char* directory : {"llama", "gpt2"})
      expect_contains(
          error_of([&] { with_head(model_from_config_json(family_config(directory))); }),
          {"needs an encoder", directory,
           scored == ScoredTokens::span ? "answers" : "labels of tokens"});
    EXPECT_THROW(with_head(decoder_model(testing::plain_decoder())), Error);
    EXPECT_EQ(with_head(model_from_config_json(family_config("bert")))->facts().scored, scored);
  }
  DecoderValue value = testing::plain_decoder();
  value.score_labels = 2;
  value.score_label_names = {"a", "b"};
  value.scored = ScoredTokens::mean;
  expect_contains(error_of([&] { decoder_model(value); }), {"only an encoder", "mean"});
}

// transformers' BertModel and the like.
TEST(Encoders, WithoutAHeadHaveTheirLayersAlone) {
  for (const auto& [directory, name] : {std::pair{"bert", "Bert"},
                                        {"roberta", "Roberta"},
                                        {"distilbert", "DistilBert"},
                                        {"modernbert", "ModernBert"},
                                        {"esm", "Esm"}}) {
    const Model model = with_class(directory, (std::string(name) + "Model").c_str()),
                masked = with_class(directory, (std::string(name) + "ForMaskedLM").c_str());
    const ModelFacts& facts = model->facts();
    EXPECT_TRUE(facts.headless && facts.two_sided && !facts.predicts_masked) << directory;
    EXPECT_TRUE(facts.summary().ends_with(", no head")) << facts.summary();
    Runtime meta({DeviceKind::meta, 0}, 1);
    const auto stage = model.build(meta, DType::f32, 0);
    int64_t elements = 0;
    std::vector<std::string> names;
    for (const parallel::ParameterSpec* placed : stage->parameters()) {
      elements += placed->whole.elements();
      for (const parallel::CanonicalTensor& tensor : placed->placement.tensors) {
        EXPECT_TRUE(tensor.name.starts_with(model->base_prefix())) << tensor.name;
        names.push_back(tensor.name);
      }
    }
    EXPECT_EQ(elements, model->parameter_count()) << directory;
    EXPECT_LT(elements, masked->parameter_count()) << directory;
    const Json written = model->config_json(DType::f32);
    EXPECT_EQ(written["architectures"].dump(), "[\"" + std::string(name) + "Model\"]");
    EXPECT_EQ(model_from_config_json(written)->describe(), model->describe()) << directory;
    // A head that begins anew is that of the masked language model's classifier.
    const ModelChanges changes{
        .score_head = ScoreHead{.label_names = {"a", "b"}, .padding = facts.score_padding}};
    EXPECT_EQ(model->with(changes)->describe(), masked->with(changes)->describe()) << directory;
  }
  expect_contains(refusal("bert", "architectures", Json(Json::Array{"BertLMHeadModel"})),
                  {"BertLMHeadModel", "BertForMaskedLM", "BertModel"});
}

TEST(ScoreHeads, MayHaveSeveralLabelsForAText) {
  for (const char* directory : {"bert_classify", "modernbert"}) {
    Json config = family_config(directory);
    if (directory == std::string("modernbert"))
      config.set("architectures", Json::Array{"ModernBertForSequenceClassification"});
    config.set("id2label", Json::parse(R"({"0": "a", "1": "b", "2": "c"})"));
    config.set("problem_type", "multi_label_classification");
    const Model model = model_from_config_json(config);
    EXPECT_TRUE(model->facts().multi_label);
    expect_contains(model->facts().summary(), {"a head of 3 scores, several of which"});
    EXPECT_EQ(model->facts().score_activation, ScoreActivation::sigmoid);
    const Json written = model->config_json(DType::f32);
    EXPECT_EQ(written["problem_type"].as_string(), "multi_label_classification");
    EXPECT_EQ(model_from_config_json(written)->describe(), model->describe());
    config.set("id2label", Json::parse(R"({"0": "a"})"));
    expect_contains(error_of([&] { model_from_config_json(config); }),
                    {"multi_label_classification", "at least two"});
  }
}

}  // namespace
}  // namespace megatron::models
