// Generation with multi-latent attention whose cache is read in absorbed form. The plain form is
// among the families of families_test.cpp.
#include "golden/inference/losses.h"
#include "inference/engine.h"
#include "unit/models/family_models.h"

namespace megatron::testing {
namespace {

using inference::Request;

std::vector<Request> some_requests(int64_t vocabulary) {
  std::vector<Request> requests;
  for (const int64_t length : {3, 40, 75, 12})
    requests.push_back({.number = static_cast<uint64_t>(length),
                        .prompt = random_tokens(length, vocabulary, 9),
                        .max_tokens = 12,
                        .sampling = {.temperature = 0.8, .seed = 4},
                        .logprobs = 1});
  return requests;
}

models::Model deepseek(const char* name) {
  Json config = family_config(name);
  config.set("initializer_range", 0.3);
  return models::model_from_config_json(config);
}

// Sums are taken over the latent instead of over a head, so bits differ, by rounding of f32 only:
// the same tokens are drawn with the same probabilities.
TEST(AbsorbedLatents, GiveTheTokensOfPlainOnes) {
  for (const char* name : {"deepseek_v2", "deepseek_v2_lite", "deepseek_v3"}) {
    RandomModel m(deepseek(name), DType::f32);
    const std::vector<Request> requests = some_requests(m.model.model()->vocab_size());
    const auto with = [&](inference::LatentDecode form) {
      return inference::generate(m.model, m.runtime, requests,
                                 {.max_requests = 3, .max_tokens = 16, .latent_decode = form});
    };
    const auto plain = with(inference::LatentDecode::plain),
               absorbed = with(inference::LatentDecode::absorbed);
    int64_t differ = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(plain[i].tokens.size(), absorbed[i].tokens.size());
      for (size_t t = 0; t < plain[i].tokens.size(); ++t) {
        EXPECT_EQ(plain[i].tokens[t].draw.token, absorbed[i].tokens[t].draw.token);
        const double p = plain[i].tokens[t].draw.log_probability,
                     a = absorbed[i].tokens[t].draw.log_probability;
        EXPECT_NEAR(p, a, 1e-4) << name << ", request " << i << ", token " << t;
        differ += p != a;
      }
    }
    EXPECT_GT(differ, 0) << "both forms give the same bits: is one of them not run?";
  }
}

// A result does not depend on what else runs.
TEST(AbsorbedLatents, OfSeveralRequestsAreThoseOfEachAlone) {
  RandomModel m(deepseek("deepseek_v3"), DType::bf16);
  const std::vector<Request> requests = some_requests(m.model.model()->vocab_size());
  const inference::EngineOptions options{
      .max_requests = 3, .max_tokens = 16, .latent_decode = inference::LatentDecode::absorbed};
  const auto together = inference::generate(m.model, m.runtime, requests, options);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto alone = inference::generate(m.model, m.runtime, std::span(&requests[i], 1), options);
    EXPECT_EQ(numbers_of(together[i]), numbers_of(alone[0])) << i;
  }
}

// One latent and one rotary key per token and layer are all that is cached.
TEST(LatentCache, HoldsTheLatentAndTheRotaryKey) {
  RandomModel m(deepseek("deepseek_v3"), DType::f32);
  const std::vector<nn::LayerCache> layers = m.model.layer_caches();
  ASSERT_EQ(layers.size(), 3u);
  for (const nn::LayerCache& layer : layers) {
    EXPECT_EQ(layer.latent, 12 + 8);
    EXPECT_EQ(layer.token_elements(), 12 + 8);
  }
}

}  // namespace
}  // namespace megatron::testing
