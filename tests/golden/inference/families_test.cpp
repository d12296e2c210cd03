// Generation with every family, and with models whose attention uses windows.
#include "golden/inference/bits.h"
#include "golden/inference/losses.h"
#include "inference/engine.h"
#include "unit/models/family_models.h"

namespace megatron::testing {
namespace {

using inference::Request;

// Uses widely spread initial values, so that the logits differ.
Json wide_config(const std::string& name) {
  Json config = family_config(name);
  config.set("initializer_range", 0.3);
  return config;
}

// Loss of `token` after `text`, by one pass over the text.
double loss_behind(RandomModel& m, const Tokens& text, int32_t token) {
  nn::Batch batch = whole_batch(m, {text});
  Tokens labels(text.size());
  std::vector<double> weights(text.size());
  labels.back() = token;
  weights.back() = 1;
  batch.labels = integers(m.runtime, labels);
  copy_from(batch.loss_weights, std::span<const double>(weights));
  Tape tape(m.runtime, Tape::Mode::infer);
  const Bundle out = models::forward(m.model, tape, {}, batch, models::Phase::evaluate);
  return to_floats(models::head_loss(m.model, tape, out, batch)).back();
}

// The logits from which each token is drawn are bit-identical to a pass over the text so far: with
// a window of 7 tokens, within and beyond the original context of 24, and for several requests at
// once.
void expect_uncached_bits(RandomModel& m) {
  inference::Engine engine(m.model, m.runtime, {.max_requests = 3, .max_tokens = 8});
  std::map<inference::RequestId, Tokens> texts;
  for (const int64_t length : {3, 20, 30, 12}) {
    Request request{.number = static_cast<uint64_t>(length),
                    .prompt = random_tokens(length, m.model.model()->vocab_size(), 9),
                    .max_tokens = 12,
                    .sampling = {.temperature = 0.8, .seed = 4}};
    const Tokens prompt = request.prompt;
    texts[engine.submit(std::move(request))] = prompt;
  }
  int64_t compared = 0;
  while (!engine.idle()) {
    for (const inference::RequestUpdate& update : engine.step()) {
      Tokens& text = texts[update.id];
      for (const auto& token : update.tokens) {
        EXPECT_EQ(token.draw.log_probability, -loss_behind(m, text, token.draw.token))
            << "behind " << text.size() << " tokens";
        text.push_back(token.draw.token);
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 4 * 12);
}

class Families : public ::testing::TestWithParam<const char*> {};

TEST_P(Families, CachedIsUncachedBitForBit) {
  const models::Model definition = models::model_from_config_json(wide_config(GetParam()));
  for (const DType type : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(name(type));
    RandomModel m(definition, type);
    expect_uncached_bits(m);
  }
}

// Pages behind a window of 100 are released. Pieces have one token, several, or more than the
// window, and texts of several lengths run together.
TEST(Windows, OfALongTextAreThoseOfOnePass) {
  for (const DType type : {DType::f32, DType::bf16}) {
    models::ModelFlags flags = llama_shape(3, 32, 4, 2, 61, 700);
    flags.window_size = "99,0";
    flags.window_attn_skip_freq = "3";
    RandomModel m(flags, type);
    expect_bits_of_one_pass(m, {700}, {3}, {1, 37, 130, 512});
  }
}

// Results equal those of each request alone, whatever else runs, also in slots that are reused.
TEST(Windows, OfSeveralRequestsAreThoseOfEachAlone) {
  models::ModelFlags flags = llama_shape(2, 32, 4, 2, 61, 900);
  flags.window_size = "63,0";
  RandomModel m(flags, DType::f32);
  std::vector<Request> requests;
  for (const int64_t length : {600, 20, 430, 5, 300})
    requests.push_back({.number = static_cast<uint64_t>(length),
                        .prompt = random_tokens(length, 61, 9),
                        .max_tokens = 30,
                        .sampling = {.temperature = 0.8, .seed = 4},
                        .logprobs = 1});
  const auto together =
      inference::generate(m.model, m.runtime, requests, {.max_requests = 2, .max_tokens = 128});
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto alone = inference::generate(m.model, m.runtime, std::span(&requests[i], 1), {});
    EXPECT_EQ(numbers_of(together[i]), numbers_of(alone[0])) << i;
    expect_losses_of_evaluation(m, requests[i], alone[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Families, ::testing::ValuesIn(kFamilyDirectories),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace megatron::testing
