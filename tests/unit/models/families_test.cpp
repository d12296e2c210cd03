// Every family, and decoders with every feature: compared with the plain oracle, counted, described
// and read back.
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/model_flags.h"
#include "models/stage.h"
#include "text.h"
#include "tiny_gpt.h"
#include "unit/models/family_models.h"

namespace megatron::models {
namespace {

// What an encoder's embedding reads besides tokens, of texts of one type.
void add_encoder_inputs(Runtime& runtime, const ModelFacts& model, nn::Batch& batch) {
  if (!model.two_sided) return;
  const auto length = static_cast<size_t>(batch.layout.length);
  const size_t tokens = static_cast<size_t>(batch.layout.rows());
  const auto tensor = [&]<class T>(DType type, const std::vector<T>& values) {
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), {batch.layout.rows()}, type,
                             "batch.encoder");
    copy_from(t, std::span<const T>(values));
    return t;
  };
  std::vector<int32_t> positions;
  std::vector<double> factors;
  const std::span ids(batch.tokens.data<int32_t>(), tokens);
  for (size_t t = 0; t < tokens; ++t) {
    positions.push_back(static_cast<int32_t>(t % length) +
                        static_cast<int32_t>(model.position_offset));
    const auto row = ids.subspan(t / length * length, length);
    const auto masks = static_cast<double>(std::ranges::count(row, model.left_out_token)),
               all = static_cast<double>(length);
    factors.push_back(ids[t] == model.left_out_token ? 0 : 0.88 * all / (all - masks));
  }
  batch.positions = tensor(DType::i32, positions);
  batch.token_types = tensor(DType::i32, std::vector<int32_t>(tokens));
  batch.embedding_factors = tensor(DType::f64, factors);
}

// Compares losses of the composition in fp64, by reference kernels, with the oracle.
TEST(Families, AgreeWithThePlainOracle) {
  auto models = testing::family_models();
  for (const char* name : testing::kEncoderDirectories)
    models.emplace_back(name, model_from_config_json(testing::family_config(name)));
  for (const char* name : testing::kEncoderDecoderDirectories)
    models.emplace_back(name, model_from_config_json(testing::family_config(name)));
  models.emplace_back("qwen2 with a score head",
                      model_from_config_json(testing::qwen2_classifier()));
  for (const auto& [name, model] : models) {
    Runtime runtime({DeviceKind::reference, 0}, 1);
    const auto stage = model.build(runtime, DType::f64, 0);
    std::vector<parallel::ParameterSpec*> saved(stage->parameters().begin(),
                                                stage->parameters().end());
    for (nn::ModuleState* state : stage->states()) saved.push_back(&state->placed);
    testing::fill_with_noise(saved);
    PlainTensors weights;
    for (const parallel::ParameterSpec* placed : saved) {
      const std::vector<double> values = to_doubles(placed->parameter.value);
      for_each_run(*placed, [&](const parallel::CanonicalTensor& part, int64_t canonical,
                                int64_t local, int64_t size) {
        std::vector<double>& stored = weights[part.name];
        stored.resize(static_cast<size_t>(part.global.elements()));
        const int rank = part.global.rank();
        const int64_t columns = rank < 2 ? 1 : part.global[rank - 1],
                      rows = rank < 2 ? 1 : part.global[rank - 2];
        for (int64_t i = 0; i < size; ++i) {
          const int64_t at = canonical + i, row = at / columns % rows,
                        matrix = at / (rows * columns);
          const int64_t there =
              part.transposed ? (matrix * columns + at % columns) * rows + row : at;
          stored[static_cast<size_t>(there)] = values[static_cast<size_t>(local + i)];
        }
      });
    }
    // A classifier's labels are its classes.
    const testing::TinyConfig sizes{.vocab_size = model->score_labels() > 0 ? model->score_labels()
                                                                            : model->vocab_size()};
    nn::Batch batch = testing::tiny_batch(runtime, sizes, DType::f64);
    add_encoder_inputs(runtime, model->facts(), batch);
    nn::Batch texts = batch;  // of an encoder before a decoder
    texts.tokens = batch.labels;
    if (model->facts().encoder_layers > 0) batch.encoder = &texts;
    Tape tape(runtime, Tape::Mode::infer);
    const std::vector<double> losses = to_doubles(
        head_loss(*stage, tape, forward(*stage, tape, {}, batch, Phase::evaluate), batch));
    const int64_t length = batch.layout.length;
    for (int64_t b = 0; b < batch.layout.sequences; ++b) {
      const auto part = [&](const Tensor& t) {
        return std::span(t.data<int32_t>() + b * length, static_cast<size_t>(length));
      };
      const std::vector<double> plain = model->plain_losses(
          weights, {part(batch.tokens), part(texts.tokens)}, part(batch.labels));
      for (int64_t t = 0; t < length; ++t) {
        const double loss = losses[static_cast<size_t>(b * length + t)];
        if (loss == 0) continue;  // has weight 0
        EXPECT_NEAR(loss, plain[static_cast<size_t>(t)], 1e-10 * std::abs(loss))
            << name << " " << t;
      }
    }
  }
}

// Llama 4 normalizes heads after rotating them, so that the amplitude of the angles is lost.
TEST(Families, NormsWithoutWeightsUndoTheAmplitude) {
  const auto losses = [](double amplitude) {
    DecoderValue value = testing::plain_decoder();
    value.rotary["default"] = {.scaling = nn::RopeScaling::yarn,
                               .factor = 4,
                               .original_positions = 8,
                               .attention_factor = amplitude};
    for (LayerValue& layer : value.layers) {
      layer.norm.epsilon = 1e-14;
      layer.attention()->qk_norm = nn::QkNorm::l2;
    }
    Runtime runtime({DeviceKind::reference, 0}, 1);
    const auto stage = decoder_model(value).build(runtime, DType::f64, 0);
    const testing::TinyConfig sizes{.vocab_size = value.vocab_size};
    const nn::Batch batch = testing::tiny_batch(runtime, sizes, DType::f64);
    Tape tape(runtime, Tape::Mode::infer);
    return to_doubles(
        head_loss(*stage, tape, forward(*stage, tape, {}, batch, Phase::evaluate), batch));
  };
  const std::vector<double> one = losses(1), three = losses(3);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(three[i], one[i], 1e-10 * one[i]) << i;
}

TEST(Families, ParametersAreCounted) {
  for (const auto& [name, model] : testing::family_models()) {
    Runtime meta({DeviceKind::meta, 0}, 1);
    const auto stage = model.build(meta, DType::f32, 0);
    int64_t elements = 0;
    for (const parallel::ParameterSpec* placed : stage->parameters())
      elements += placed->parameter.value.elements();
    EXPECT_EQ(model->parameter_count(), elements) << name;
  }
}

// Depths of multi-token prediction are left out when a config.json is read, and can be taken in.
TEST(Families, DepthsOfPredictionAreCountedAndComeBack) {
  const auto predicting = [](const Model& model, int64_t depths) {
    return model->with({.prediction = PredictionChange{.depths = depths}});
  };
  const Model glm = model_from_config_json(testing::family_config("glm4_moe")),
              deepseek = model_from_config_json(testing::family_config("deepseek_v3"));
  DecoderValue value = testing::plain_decoder();
  value.prediction = {.depths = 1, .layer = value.layers.back()};
  for (const Model& model : {predicting(glm, 1), predicting(deepseek, 2), decoder_model(value)}) {
    Runtime meta({DeviceKind::meta, 0}, 1);
    const auto stage = model.build(meta, DType::f32, 0);
    int64_t elements = 0;
    for (const parallel::ParameterSpec* placed : stage->parameters())
      elements += placed->parameter.value.elements();
    EXPECT_EQ(model->parameter_count(), elements);
    const int64_t depths = model->facts().prediction.depths;
    const Model read = model_from_config_json(model->config_json(DType::f32));
    EXPECT_EQ(read->facts().prediction.depths, 0);
    EXPECT_EQ(read->facts().prediction.left_out, depths);
    EXPECT_EQ(predicting(read, depths)->describe(), model->describe());
    EXPECT_EQ(predicting(model, 0)->describe(), read->describe());
  }
  EXPECT_THROW(predicting(model_from_config_json(testing::family_config("llama")), 1), Error);
}

// A description contains everything about a model, and a saved config.json all that its family
// needs.
TEST(Families, DescriptionsComeBack) {
  for (const auto& [name, value] : testing::other_decoders()) {
    EXPECT_EQ(to_json(decoder_from_json(to_json(value))), to_json(value)) << name;
    const Model model = decoder_model(value);
    EXPECT_EQ(model->family(), "megatron") << name;
    const Model again = model_from_config_json(model->config_json(DType::f32));
    EXPECT_EQ(again->describe(), model->describe()) << name;
  }
  for (const char* name : testing::kFamilyDirectories) {
    const Model model = model_from_config_json(testing::family_config(name));
    const DecoderValue value = decoder_from_json(model->describe());
    EXPECT_EQ(to_json(value), model->describe()) << name;
    // Each family can represent what it reads, and GPT-2 none of the other models.
    EXPECT_EQ(obstacle(family_named(model->family()), value), "") << name;
    EXPECT_EQ(obstacle(family_named("gpt2"), value).empty(), model->family() == "gpt2") << name;
  }
}

// Nemotron's own files have no vectors: widths and heads from the formulas of its model card.
TEST(Families, LlamaNemotronFollowsItsFormulas) {
  Json config = testing::family_config("llama");
  config.set("model_type", "nemotron-nas");
  config.set("hidden_size", 768);
  config.set("num_attention_heads", 8);
  config.set("head_dim", Json());
  config.set("num_key_value_heads", Json());
  config.set("intermediate_size", Json());
  config.set("block_configs", Json::parse(R"([
      {"attention": {"n_heads_in_group": 8, "no_op": false, "replace_with_linear": false},
       "ffn": {"ffn_mult": 1.3125, "no_op": false, "replace_with_linear": false}},
      {"attention": {"n_heads_in_group": null, "no_op": true}, "ffn": {"ffn_mult": 0.5}},
      {"attention": {"replace_with_linear": true}, "ffn": {"no_op": true}}])"));
  const Model model = model_from_config_json(config);
  const DecoderValue value = decoder_from_json(model->describe());
  EXPECT_EQ(value.layers[0].attention()->kv_heads, 1);
  EXPECT_EQ(value.layers[0].mlp()->ffn, 768);  // 2 x 1.3125 x 768 / 3 = 672, in steps of 256
  EXPECT_EQ(value.layers[1].attention(), nullptr);
  EXPECT_EQ(value.layers[1].mlp()->ffn, 256);
  EXPECT_TRUE(std::holds_alternative<LinearConfig>(value.layers[2].mixer));
  EXPECT_TRUE(std::holds_alternative<NoOp>(value.layers[2].feed_forward));
  const Model again = model_from_config_json(model->config_json(DType::bf16));
  EXPECT_EQ(again->describe(), model->describe());
  for (const auto& [key, bad] : {std::pair{"block_configs", "[]"}, {"block_configs", "3"}}) {
    Json wrong = config;
    wrong.set(key, Json::parse(bad));
    EXPECT_THROW(model_from_config_json(wrong), Error) << bad;
  }
}

TEST(Families, ScoreHeads) {
  const Model classifier = model_from_config_json(testing::qwen2_classifier());
  EXPECT_EQ(classifier->score_labels(), 3);
  EXPECT_EQ(classifier->facts().score_padding, 0);
  EXPECT_EQ(model_from_config_json(classifier->config_json(DType::f32))->describe(),
            classifier->describe());
  Runtime meta({DeviceKind::meta, 0}, 1);
  const auto stage = classifier.build(meta, DType::f32, 0);
  std::vector<std::string> names;
  for (const parallel::ParameterSpec* placed : stage->parameters())
    for (const parallel::CanonicalTensor& tensor : placed->placement.tensors)
      names.push_back(tensor.name);
  EXPECT_EQ(std::ranges::count(names, "score.weight"), 1);
  EXPECT_EQ(std::ranges::count(names, "lm_head.weight"), 0);
  EXPECT_THROW(require_language_model(classifier, "megatron generate"), Error);
  require_language_model(model_from_config_json(testing::family_config("qwen2")),
                         "megatron generate");
  Json config = testing::qwen2_classifier();  // with three labels
  config.set("problem_type", "regression");
  EXPECT_THROW(model_from_config_json(config), Error);
}

TEST(Families, NamesOfLabelsAreKept) {
  Json config = testing::qwen2_classifier();
  const auto kept = [&] {
    const Model model = model_from_config_json(config);
    const Json written = model->config_json(DType::f32);
    EXPECT_EQ(model_from_config_json(written)->describe(), model->describe());
    return written;
  };
  config.set("id2label", Json::parse(R"({"1": "bad", "2": "so-so", "0": "good"})"));
  const std::vector<std::string> names = {"good", "bad", "so-so"};
  EXPECT_EQ(model_from_config_json(config)->facts().label_names, names);
  const Json written = kept();
  EXPECT_EQ(written["id2label"].dump(), R"({"0": "good", "1": "bad", "2": "so-so"})");
  EXPECT_EQ(written["label2id"].dump(), R"({"good": 0, "bad": 1, "so-so": 2})");
  for (const char* wrong : {R"({"0": "good", "2": "bad"})", R"({"1": "good"})"}) {
    config.set("id2label", Json::parse(wrong));
    testing::expect_contains(testing::error_of([&] { model_from_config_json(config); }),
                             {"id2label", "numbered from 0 on"});
  }
  config.set("id2label", Json());
  config.set("num_labels", 2);
  EXPECT_EQ(kept()["id2label"].dump(), R"({"0": "LABEL_0", "1": "LABEL_1"})");
}

TEST(Families, ProblemTypesAreKept) {
  constexpr const char* kOne = "single_label_classification";
  const std::tuple<int64_t, Json, ScoreActivation> cases[] = {
      {3, kOne, ScoreActivation::softmax},
      {3, Json(), ScoreActivation::softmax},
      {1, kOne, ScoreActivation::sigmoid},
      {1, Json(), ScoreActivation::sigmoid},
      {1, "regression", ScoreActivation::none},
      {3, "multi_label_classification", ScoreActivation::sigmoid},
  };
  for (const auto& [labels, problem, activation] : cases) {
    Json config = testing::qwen2_classifier();
    config.set("id2label", Json());
    config.set("num_labels", labels);
    config.set("problem_type", problem);
    const Model model = model_from_config_json(config);
    EXPECT_EQ(model->facts().score_activation, activation) << labels << problem.dump();
    const Json written = model->config_json(DType::f32);
    const Json* found = written.find("problem_type");
    EXPECT_EQ(found == nullptr ? Json() : *found, problem) << labels;
  }
}

// Yang et al. 2022: a model four times as wide as its base.
TEST(Families, MuPScalesWhatItSays) {
  ModelFlags flags{.num_layers = 2, .hidden_size = 64, .num_attention_heads = 4, .vocab_size = 8};
  flags.untie = true;
  flags.use_mup = true;
  flags.mup_base_hidden_size = 16;
  flags.mup_embedding_mult = 3;
  flags.init_method_std = 0.1;
  const Model model = model_from_flags(flags, 8);
  const DecoderValue value = decoder_from_json(model->describe());
  EXPECT_EQ(value.width_multiplier, 4);
  EXPECT_EQ(value.embedding_scale, 3);
  EXPECT_EQ(value.logits_scale, 0.25);
  EXPECT_EQ(value.layers[0].attention()->scale, 1.0 / 16);
  flags.mup_base_head_dim = 4;
  flags.mup_attn_scale_power = 0.5;
  flags.mup_output_mult = 2;
  const DecoderValue other = decoder_from_json(model_from_flags(flags, 8)->describe());
  EXPECT_EQ(other.layers[0].attention()->scale, 0.5);
  EXPECT_EQ(other.logits_scale, 2);
  Runtime meta({DeviceKind::meta, 0}, 1);
  const auto stage = model.build(meta, DType::f32, 0);
  const std::map<std::string, double> deviations = {
      {"embedding.weight", 0.1},
      {"output.weight", 0.1},
      {"position_embedding.weight", 0.1},
      {"layers.0.attention.qkv.weight", 0.1 / 2},
      {"layers.1.mlp.down.weight", 0.1 / std::sqrt(4.0 * 4)}};
  size_t seen = 0;
  for (const parallel::ParameterSpec* placed : stage->parameters()) {
    EXPECT_EQ(placed->width_multiplier, 4);
    EXPECT_EQ(placed->grows_both_ways,
              placed->parameter.value.rank() == 2 && placed->parameter.name.starts_with("layers."))
        << placed->parameter.name;
    const auto wanted = deviations.find(placed->parameter.name);
    if (wanted == deviations.end()) continue;
    EXPECT_DOUBLE_EQ(placed->init.scale, wanted->second) << wanted->first;
    ++seen;
  }
  EXPECT_EQ(seen, deviations.size());
  // A directory keeps the multiplier, which Hugging Face's readers ignore.
  const Model again = model_from_config_json(model->config_json(DType::f32));
  EXPECT_EQ(again->describe(), model->describe());
  flags = {.num_layers = 2, .hidden_size = 64, .num_attention_heads = 4, .vocab_size = 8};
  flags.use_mup = true;
  flags.init_method_xavier_uniform = true;
  flags.mup_base_hidden_size = 16;
  EXPECT_THROW(model_from_flags(flags, 8), Error);
}

TEST(Families, OfFlagsAreTheFirstThatCanHoldThem) {
  ModelFlags flags{.num_layers = 4, .hidden_size = 16, .num_attention_heads = 2, .vocab_size = 8};
  flags.position_embedding = PositionEmbedding::rope;
  flags.normalization = nn::Normalization::rms_norm;
  flags.swiglu = true;
  flags.add_bias_linear = false;
  const auto family = [&] { return std::string(model_from_flags(flags, 8)->family()); };
  EXPECT_EQ(family(), "llama");
  flags.use_rope_scaling = true;
  EXPECT_EQ(family(), "llama");
  flags.use_rope_scaling = false;
  flags.add_qkv_bias = true;
  EXPECT_EQ(family(), "qwen2");
  flags.add_qkv_bias = false;
  flags.qk_layernorm = true;
  EXPECT_EQ(family(), "qwen3");
  flags.qk_layernorm = false;
  flags.window_size = "3,0";
  EXPECT_EQ(family(), "mistral");
  flags.window_size.reset();
  flags.rotary_percent = 0.5;
  flags.model_family = "phi3";
  EXPECT_EQ(family(), "phi3");
  // Its file states the scale of scores, which the flags leave at its default.
  flags.rotary_percent = 1;
  flags.model_family = "granite";
  EXPECT_EQ(family(), "granite");
  flags.model_family = "olmo2";
  try {
    family();
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* part : {"--model-family olmo2", "norm"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  flags.model_family = "opt";
  EXPECT_THROW(family(), Error);
}

}  // namespace
}  // namespace megatron::models
