#include "selftest/verify_bert.h"

#include <array>
#include <filesystem>
#include <string_view>

#include "selftest/sentence_case.h"

namespace megatron::selftest {
namespace {

namespace fs = std::filesystem;

struct Bert {
  using Dataset = data::BertDataset;
  using Blend = data::BertBlend;
  using Padded = data::PaddedBertSample;
  static constexpr std::array kFields = {"text",      "types",     "labels",   "padding_mask",
                                         "loss_mask", "is_random", "truncated"};

  static data::BertDatasetConfig config(const Json& request) {
    auto config = common_config<data::BertDatasetConfig>(request);
    config.next_sentence = request["classification_head"].as_bool();
    return config;
  }
  static auto build(const data::BlendList& list, const SentenceData::Opened& opened,
                    const data::BertDatasetConfig& config, data::Split split,
                    std::optional<int64_t> samples) {
    return data::build_bert_examples(list, opened.tokens, config, split, samples);
  }
  static std::vector<std::pair<std::string, int64_t>> facts(const Dataset& set) {
    return {{"random_token_pool_size", set.masker().replacements()}};
  }
  static std::optional<std::string> difference(const Padded& own, std::string_view field,
                                               const Json& value) {
    const auto list = [&](const std::vector<int64_t>& values) {
      return first_difference(values, integers_of(value));
    };
    if (field == "text") return list(own.text);
    if (field == "types") return list(own.types);
    if (field == "labels") return list(own.labels);
    if (field == "padding_mask") return list(own.padding_mask);
    if (field == "loss_mask") return list(own.loss_mask);
    if (field == "is_random") return difference_of(int64_t{own.is_random}, value);
    if (field == "truncated") return difference_of(int64_t{own.truncated}, value);
    return {};
  }
};

}  // namespace

std::vector<std::string> case_folders(const std::string& directory) {
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator(directory + "/cases"))
    if (fs::exists(entry.path() / "case.json")) folders.push_back(entry.path());
  std::ranges::sort(folders);
  return folders;
}

bool has_cases(const std::string& directory, const std::string& key) {
  if (!fs::exists(directory + "/data/index.json") || !fs::is_directory(directory + "/cases"))
    return false;
  const std::vector<std::string> folders = case_folders(directory);
  return !folders.empty() && Json::read(folders[0] + "/case.json").contains(key);
}

data::MaskingOptions masking_options(const Json& request) {
  const auto flag = [&](const char* key) { return request[key].as_bool(); };
  return {.probability = request["masking_probability"].as_number(),
          .max_ngram = request["masking_max_ngram"].as_integer(),
          .whole_words = flag("masking_do_full_word"),
          .longer_ngrams = flag("masking_use_longer_ngrams"),
          .geometric = flag("masking_use_geometric_distribution"),
          .permutation = flag("masking_do_permutation")};
}

bool has_bert_dataset(const std::string& directory) {
  return has_cases(directory, "classification_head");
}

Report verify_bert_dataset(const std::string& directory) {
  Report report(fmt::format("{}: BERT data sets", directory));
  if (fs::exists(directory + "/random_state.json"))
    compare_random_draws(directory + "/random_state.json", report);
  if (fs::exists(directory + "/build_mapping.json"))
    compare_mappings(directory + "/build_mapping.json", report);
  compare_sentence_cases<Bert>(directory, report);
  return report;
}

}  // namespace megatron::selftest
