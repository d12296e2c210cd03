// Texts that encoders read in shared passes, compared with transformers' logits.
#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "checkpoint/model_directory.h"
#include "checkpoint/safetensors.h"
#include "golden/inference/support.h"
#include "inference/embedding.h"
#include "inference/engine.h"
#include "inference/fill_mask.h"
#include "inference/scores.h"
#include "text.h"
#include "unit/models/family_models.h"

namespace megatron::testing {
namespace {

using inference::Engine;
using inference::Request;
using inference::RequestUpdate;

// A model of the golden vectors with its inputs, row by row and without padding.
struct GoldenEncoder {
  explicit GoldenEncoder(const std::string& name)
      : directory(family_directory(name)),
        expected(family_directory(name) + "/expected.safetensors"),
        model(models::model_from_directory(directory.path())),
        runtime({DeviceKind::cpu, 0}, 2),
        stage(model.build(runtime, DType::f32, 0)) {
    std::vector<std::string> surplus;
    for (const std::string& tensor : directory.tensor_names())
      if (model->is_surplus(tensor)) surplus.push_back(tensor);
    checkpoint::load(directory, models::tensors_of(*stage), surplus);
    const std::vector<int64_t> ids = expected.integers("input_ids"),
                               mask = expected.integers("attention_mask");
    const bool types = expected.find("token_type_ids") != nullptr;
    const std::vector<int64_t> type = types ? expected.integers("token_type_ids") : ids;
    length = static_cast<size_t>(expected.find("input_ids")->shape[1]);
    for (size_t row = 0; row < ids.size(); row += length) {
      Request& request =
          requests.emplace_back(Request{.number = requests.size(), .prompt = {}, .max_tokens = 0});
      for (size_t t = row; t < row + length && mask[t] != 0; ++t) {
        request.prompt.push_back(static_cast<int32_t>(ids[t]));
        if (types) request.token_types.push_back(static_cast<int32_t>(type[t]));
      }
    }
  }

  std::vector<RequestUpdate> run(const std::vector<Request>& all, int64_t max_tokens) const {
    Engine engine(*stage, const_cast<Runtime&>(runtime), {.max_tokens = max_tokens});
    EXPECT_EQ(engine.cache_use().bytes, 0);
    std::map<inference::RequestId, size_t> number;
    for (size_t i = 0; i < all.size(); ++i) number[engine.submit(all[i])] = i;
    std::vector<RequestUpdate> updates(all.size());
    while (!engine.idle())
      for (RequestUpdate& update : engine.step()) {
        EXPECT_EQ(update.finish, inference::Finish::scored) << update.error;
        updates[number.at(update.id)] = std::move(update);
      }
    return updates;
  }

  checkpoint::ModelDirectory directory;
  checkpoint::SafetensorsFile expected;
  models::Model model;
  Runtime runtime;
  std::unique_ptr<models::Stage> stage;
  size_t length = 0;
  std::vector<Request> requests;  // without what is wanted
};

class EncoderScores : public ::testing::TestWithParam<const char*> {};

// Packed with others or alone, a text has the logits of transformers.
TEST_P(EncoderScores, AreThoseOfTransformers) {
  GoldenEncoder golden(GetParam());
  for (Request& request : golden.requests) request.scores = true;
  const auto labels = static_cast<size_t>(golden.model->score_labels());
  const bool spans = golden.expected.find("start_logits") != nullptr,
             of_tokens = spans || golden.model->facts().scored == models::ScoredTokens::each_token;
  for (const int64_t max_tokens : {1, 4096}) {
    const auto updates = golden.run(golden.requests, max_tokens);
    for (size_t row = 0; row < updates.size(); ++row) {
      const size_t tokens = of_tokens ? golden.requests[row].prompt.size() : 1;
      ASSERT_EQ(updates[row].scores.size(), tokens * labels);
      for (size_t i = 0; i < updates[row].scores.size(); ++i) {
        const size_t token = row * (of_tokens ? golden.length : 1) + i / labels;
        const double wanted =
            spans ? golden.expected.doubles(i % 2 == 0 ? "start_logits" : "end_logits")[token]
                  : golden.expected.doubles("logits")[token * labels + i % labels];
        EXPECT_NEAR(updates[row].scores[i], wanted, 1e-4) << row << ", " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, EncoderScores,
                         ::testing::Values("bert_classify", "modernbert_classify", "bert_tokens",
                                           "bert_qa"));

class MaskedPredictions : public ::testing::TestWithParam<const char*> {};

// The logits of every token are those of transformers, whatever is in its place.
TEST_P(MaskedPredictions, AreThoseOfTransformers) {
  GoldenEncoder golden(GetParam());
  const auto vocabulary = static_cast<size_t>(golden.model->vocab_size());
  const char* const name =
      golden.expected.find("prediction_logits") != nullptr ? "prediction_logits" : "logits";
  const std::vector<double> logits = golden.expected.doubles(name);
  for (Request& request : golden.requests) {
    request.prompt_alternatives = 3;
    for (size_t t = 0; t < request.prompt.size(); ++t)
      request.masked.push_back({static_cast<int32_t>(t), static_cast<int32_t>(t * 7 % vocabulary)});
  }
  const auto updates = golden.run(golden.requests, 4096);
  for (size_t row = 0; row < updates.size(); ++row) {
    const RequestUpdate& update = updates[row];
    const std::vector<inference::MaskedToken>& masked = golden.requests[row].masked;
    ASSERT_EQ(update.prompt_log_probabilities.size(), masked.size());
    ASSERT_EQ(update.prompt_alternatives.size(), masked.size());
    for (size_t t = 0; t < masked.size(); ++t) {
      const std::span<const double> of_token(&logits[(row * golden.length + t) * vocabulary],
                                             vocabulary);
      double sum = 0;
      for (const double value : of_token) sum += std::exp(value);
      const auto expected = [&](int32_t token) {
        return of_token[static_cast<size_t>(token)] - std::log(sum);
      };
      EXPECT_NEAR(update.prompt_log_probabilities[t], expected(masked[t].label), 1e-4);
      ASSERT_EQ(update.prompt_alternatives[t].likely.size(), 3u);
      const inference::Draw& best = update.prompt_alternatives[t].likely[0];
      EXPECT_EQ(best.token, std::ranges::max_element(of_token) - of_token.begin());
      EXPECT_NEAR(best.log_probability, expected(best.token), 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MaskedPredictions,
                         ::testing::Values("bert", "roberta", "distilbert", "modernbert", "esm"));

TEST(EncoderEngine, RefusesTextsAndWhatTheModelLacks) {
  GoldenEncoder masked("bert"), scores("bert_classify");
  const auto refusal = [](const GoldenEncoder& golden, const Request& request) {
    Engine engine(*golden.stage, const_cast<Runtime&>(golden.runtime), {});
    try {
      engine.submit(request);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  Request text{.prompt = {5, 6}, .max_tokens = 3};
  expect_contains(refusal(masked, text), {"the model is an encoder (bert)", "masked tokens"});
  expect_contains(refusal(scores, text), {"the model is an encoder (bert)", "its scores"});
  Request fill{.prompt = {5, 6}, .max_tokens = 0, .masked = {{0, 5}}};
  EXPECT_EQ(refusal(masked, fill), "accepted");
  expect_contains(refusal(scores, fill), {"asks for masked tokens", "head of 3 scores"});
  fill.masked = {{2, 5}};
  expect_contains(refusal(masked, fill), {"label 5 at token 2", "the text has 2 tokens"});
  fill.masked = {{0, 5}};
  fill.token_types = {0, 2};
  expect_contains(refusal(masked, fill), {"token type 2", "[0, 2)"});
  RandomModel decoder(gpt2_shape(1, 16, 2, 64, 32), DType::f32);
  Engine engine(decoder.model, decoder.runtime, {});
  fill.token_types.clear();
  try {
    engine.submit(fill);
    FAIL();
  } catch (const Error& e) {
    expect_contains(e.what(), {"the model is a decoder (gpt2)", "use an encoder"});
  }
}

TEST(Embeddings, ArePooledAndScaled) {
  const std::vector<float> hidden = {1, 2, 3, 6};  // two tokens
  using inference::EmbeddingForm, inference::Pooling;
  const auto embedding = [&](EmbeddingForm form) {
    return inference::embedding_of(inference::pooled(hidden, 2, form.pooling), 2, form);
  };
  EXPECT_EQ(embedding({Pooling::mean, false}), (std::vector<float>{2, 4}));
  EXPECT_EQ(embedding({Pooling::first_token, false}), (std::vector<float>{1, 2}));
  EXPECT_EQ(embedding({Pooling::last_token, false}), (std::vector<float>{3, 6}));
  const std::vector<float> unit = embedding({Pooling::mean, true});
  EXPECT_NEAR(unit[0], 1 / std::sqrt(5.0), 1e-6);
  EXPECT_NEAR(unit[1], 2 / std::sqrt(5.0), 1e-6);
}

}  // namespace
}  // namespace megatron::testing
