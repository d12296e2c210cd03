// An encoder-decoder divided among ranks gives the texts of one rank: with borders of a pipeline
// inside the encoder, inside the decoder and between the two.
#include "dist/inference/divided_engine.h"
#include "unit/models/family_models.h"

namespace megatron::testing {
namespace {

// encoder: how many of six layers. name: whether its layers share a table of relative positions
// (t5) or have their own (umt5).
models::Model translator(const std::string& name, int64_t encoder) {
  Json config = family_config(name);
  config.set("initializer_factor", 8.0);
  config.set("num_layers", encoder);
  config.set("num_decoder_layers", 6 - encoder);
  return models::model_from_config_json(config);
}

// Prompts of which some are equal, and some are longer than a pass.
Request translation(uint64_t number) {
  const uint64_t text = number % 5;
  if (number % 6 == 5)
    return {.number = number,
            .prompt = random_tokens(20, 96, text),
            .max_tokens = 30,
            .end_tokens = {7, 40},
            .beams = inference::BeamOptions{.beams = 3, .returned = 2}};
  return {.number = number,
          .prompt = random_tokens(1 + static_cast<int64_t>(text) * 17, 96, text),
          .max_tokens = 20 + static_cast<int64_t>(number * 11 % 50),
          .sampling = {.temperature = 0.9, .top_k = 20, .seed = 3},
          .logprobs = static_cast<int64_t>(number % 4) - 1};
}

class DividedTranslator
    : public ::testing::TestWithParam<std::tuple<const char*, int64_t, Division>> {};

TEST_P(DividedTranslator, WritesTheTextsOfOneRank) {
  const auto [name, encoder, division] = GetParam();
  RandomModel m(translator(name, encoder), DType::f32);
  std::vector<Request> requests;
  for (uint64_t n = 0; n < 14; ++n) requests.push_back(translation(n));
  const std::vector<Generation> expected = each_alone(m, requests);
  const EngineOptions options{.max_requests = 5,
                              .max_tokens = 40,
                              .block_size = 32,
                              .cache_bytes = bytes_of_blocks(m, 8, 32)};
  on_parts(m, division,
           [&](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
             inference::Statistics statistics;
             const std::vector<Generation> found =
                 inference::generate(stage, runtime, requests, options, {}, &statistics, ranks);
             if (division.tensor > 1) return expect_near(found, expected);
             for (size_t i = 0; i < expected.size(); ++i)
               EXPECT_EQ(numbers_of(found[i]), numbers_of(expected[i])) << "request " << i;
           });
}

INSTANTIATE_TEST_SUITE_P(Borders, DividedTranslator,
                         ::testing::Values(std::tuple("t5", 3, Division{.stages = 2, .led = true}),
                                           std::tuple("umt5", 4, Division{.stages = 2}),
                                           std::tuple("t5", 2, Division{.stages = 2}),
                                           std::tuple("t5", 3, Division{.stages = 3}),
                                           std::tuple("t5", 4, Division{.stages = 3, .led = true}),
                                           std::tuple("t5", 3, Division{.tensor = 2, .led = true}),
                                           std::tuple("umt5", 3,
                                                      Division{.tensor = 2, .stages = 3})));

}  // namespace
}  // namespace megatron::testing
