// Compares with Hugging Face's BpeTrainer on the same text (vectors/tokenizers/bpe_trainer).
#include "tokenizers/trainer/bpe_trainer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"

namespace megatron::tokenizers {
namespace {

const std::string kFolder = std::string(MEGATRON_GOLDEN) + "/tokenizers/bpe_trainer/";

Tokenizer train(const Json& params, const std::string& text, int threads) {
  BpeTrainerOptions options;
  options.vocabulary_size = params["vocab_size"].as_integer();
  options.min_frequency = params["min_frequency"].as_integer();
  options.special_tokens.clear();
  for (const Json& token : params["special_tokens"].as_array())
    options.special_tokens.push_back(token.as_string());
  options.all_bytes = params["initial_alphabet"].as_string() == "bytes";
  options.add_prefix_space = params["add_prefix_space"].as_bool();
  if (!params["max_token_length"].is_null())
    options.max_token_length = params["max_token_length"].as_integer();
  options.pattern = params["pattern"].as_string();
  options.threads = threads;
  BpeTrainer trainer(options);
  trainer.add(text);
  return trainer.train();
}

Json json_of(const Tokenizer& tokenizer) {
  return Json::parse(tokenizer.codec().files().at(0).content);
}

class BpeTrainerVectors : public ::testing::TestWithParam<const char*> {};

TEST_P(BpeTrainerVectors, LearnsTheSameMergesAndIds) {
  const std::string folder = kFolder + GetParam() + "/";
  const Json params = Json::read(folder + "params.json");
  const std::string text = read_file(kFolder + params["corpus"].as_string());
  const Tokenizer tokenizer = train(params, text, 1);
  const Json one = json_of(tokenizer);
  EXPECT_EQ(one["model"]["vocab"], Json::read(folder + "vocab.json"));
  std::string merges;
  for (const Json& merge : one["model"]["merges"].as_array()) {
    merges += merge.as_array()[0].as_string() + " " + merge.as_array()[1].as_string() + "\n";
  }
  EXPECT_EQ(merges, read_file(folder + "merges.txt"));
  EXPECT_EQ(json_of(train(params, text, 3)), one);
  const Json encoded = Json::read(folder + "encoded.json");
  std::vector<int32_t> ids;
  for (const Json& id : encoded["ids"].as_array())
    ids.push_back(static_cast<int32_t>(id.as_integer()));
  EXPECT_EQ(tokenizer.encode(encoded["text"].as_string()), ids);
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, BpeTrainerVectors,
                         ::testing::Values("own_v4000_min2", "own_v9000_min0", "own_v2000_seen",
                                           "own_v2000_prefix_len6", "own_v3000_llama3",
                                           "own_v3000_qwen2", "ties_v1500_len5", "ties_v3000_min0"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace megatron::tokenizers
