#include "cli/generate_masks.h"

#include <fmt/core.h>

#include "base/error.h"
#include "inference/engine_groups.h"
#include "inference/fill_mask.h"
#include "inference/follow.h"
#include "inference/generate.h"

namespace megatron::cli {

void fill_masks(const std::vector<std::string>& texts, int64_t top,
                const tokenizers::Tokenizer& tokenizer, ModelRank& rank,
                inference::EngineOptions options) {
  const inference::Followers followers(rank.ranks);
  options.vocabulary = tokenizer.vocabulary_size();
  MG_CHECK(top <= options.vocabulary, "--top-k is {}, but the tokenizer has {} tokens", top,
           options.vocabulary);
  std::vector<inference::Request> requests;
  for (const std::string& text : texts)
    requests.push_back(
        inference::fill_request(tokenizer, tokenizer.encode(text, true), top, requests.size()));
  const auto results =
      inference::generate(*rank.stage, rank.runtime, requests, options, {}, nullptr, rank.ranks);
  Json::Array all;
  for (size_t i = 0; i < requests.size(); ++i)
    all.push_back(inference::fillings_json(
        inference::fillings(tokenizer, requests[i].prompt, results[i].prompt_alternatives)));
  fmt::print("{}\n", (all.size() == 1 ? all[0] : Json(std::move(all))).dump(2));
}

}  // namespace megatron::cli
