#include "data/bert_dataset.h"

#include <algorithm>
#include <utility>

namespace megatron::data {
namespace {

constexpr int64_t kAdded = 3;  // [CLS], [SEP] and [SEP]; also reserved without a part B

MaskingOptions masking_of(const BertDatasetConfig& config) {
  MaskingOptions options = config.masking;
  options.megatron_data_order = config.megatron_data_order;
  return options;
}

}  // namespace

// The two parts of a sample, as views of its stored tokens; b is empty without a second part.
struct BertDataset::Parts {
  std::span<const int64_t> a, b;
  bool swapped = false, truncated = false;

  // Removes tokens from the beginning or the end of the longer part until `most` are left.
  void cut(int64_t most, RandomState& random) {
    while (std::ssize(a) + std::ssize(b) > most) {
      std::span<const int64_t>& longer = a.size() > b.size() ? a : b;
      longer = random.uniform() < 0.5 ? longer.subspan(1) : longer.first(longer.size() - 1);
      truncated = true;
    }
  }
};

BertDataset::BertDataset(std::shared_ptr<const IndexedDataset> source, const BertTokens& tokens,
                         BertDatasetConfig config, Split split, std::optional<int64_t> samples,
                         int64_t extended)
    : config_(std::move(config)),
      masker_(masking_of(config_), tokens),
      pad_(config_.megatron_data_order ? megatron_pad(tokens, config_.allow_ambiguous_pad_tokens)
                                       : tokens.pad),
      samples_(std::move(source), {.split = split,
                                   .shares = config_.split,
                                   .samples = samples,
                                   .extended = extended,
                                   .tokens = config_.sequence_length - kAdded,
                                   .seed = config_.seed,
                                   .short_sequence_probability = config_.short_sequence_probability,
                                   .min_sentences = config_.next_sentence ? 2 : 1,
                                   .memory = config_.memory}) {}

// Reads the sentences of sample k into `tokens`, and divides and cuts them.
BertDataset::Parts BertDataset::parts_of(int64_t k, RandomState& random,
                                         std::vector<int64_t>& tokens) const {
  const SentenceSamples::Row row = samples_.row(k);
  const int64_t sentences = row.end - row.first;
  int64_t in_a = sentences;
  if (config_.next_sentence) in_a = sentences > 2 ? random.integer(1, sentences) : 1;
  samples_.read(k, masker_.tokens(), tokens);
  size_t border = 0;
  for (int64_t i = 0; i < in_a; ++i) border += static_cast<size_t>(samples_.length(row.first + i));
  const std::span<const int64_t> all = tokens;
  Parts parts{.a = all.first(border), .b = all.subspan(border)};
  if (config_.next_sentence && random.uniform() < 0.5) {
    std::swap(parts.a, parts.b);
    parts.swapped = true;
  }
  parts.cut(row.target, random);
  return parts;
}

void BertDataset::compose(int64_t k, BertExample& example, RandomState* permuted_lengths) const {
  RandomState random((config_.seed + k) & 0xffffffff);
  std::vector<int64_t> stored;
  const Parts parts = parts_of(k, random, stored);
  const BertTokens& roles = masker_.tokens();
  std::vector<int64_t>& tokens = example.tokens;
  tokens.assign(1, roles.cls);
  tokens.insert(tokens.end(), parts.a.begin(), parts.a.end());
  tokens.push_back(roles.sep);
  example.token_types.assign(tokens.size(), 0);
  if (!parts.b.empty()) {
    tokens.insert(tokens.end(), parts.b.begin(), parts.b.end());
    tokens.push_back(roles.sep);
    example.token_types.resize(tokens.size(), 1);
  }
  example.is_random = parts.swapped;
  example.truncated = parts.truncated;
  example.labels.resize(tokens.size());
  std::optional<RandomState> global;
  if (config_.megatron_data_order && permuted_lengths == nullptr)
    permuted_lengths = &global.emplace(config_.seed);
  masker_.mask(tokens, samples_.row(k).target, random, permuted_lengths, example.labels);
}

void BertDataset::read(int64_t k, BertExample& example) const {
  compose(k, example, nullptr);
  if (config_.megatron_data_order) std::ranges::replace(example.tokens, pad_, int64_t{0});
}

void BertDataset::read_padded(int64_t k, PaddedBertSample& sample,
                              RandomState* permuted_lengths) const {
  const auto length = static_cast<size_t>(config_.sequence_length);
  const bool megatron = config_.megatron_data_order;
  BertExample example;
  compose(k, example, permuted_lengths);
  sample.is_random = example.is_random;
  sample.truncated = example.truncated;
  sample.padding_mask.assign(example.tokens.size(), 1);
  sample.loss_mask.assign(length, 0);
  sample.text = std::move(example.tokens);
  sample.types = std::move(example.token_types);
  sample.labels = std::move(example.labels);
  for (size_t i = 0; i < sample.labels.size(); ++i)
    sample.loss_mask[i] = sample.labels[i] != TokenMasker::kIgnored;
  std::ranges::replace(sample.labels, TokenMasker::kIgnored, int64_t{-1});
  sample.labels.resize(length, -1);
  sample.text.resize(length, pad_);
  sample.types.resize(length, megatron ? pad_ : 0);
  sample.padding_mask.resize(length, 0);
  if (!megatron) return;
  // Megatron-LM recognizes padding by its id.
  for (size_t i = 0; i < length; ++i) {
    if (sample.text[i] == pad_) sample.padding_mask[i] = pad_;
    if (sample.text[i] == pad_) sample.text[i] = 0;
    if (sample.labels[i] == pad_) sample.labels[i] = 0;
  }
}

std::shared_ptr<const BertExamples> build_bert_examples(const BlendList& list,
                                                        const BertTokens& tokens,
                                                        const BertDatasetConfig& config,
                                                        Split split, std::optional<int64_t> samples,
                                                        double surplus, int64_t extended) {
  const auto open = [&](const std::string& prefix, std::optional<int64_t> count, int64_t all) {
    return std::make_shared<const BertDataset>(std::make_shared<const IndexedDataset>(prefix),
                                               tokens, config, split, count, all);
  };
  return build_examples<BertExample>(list, samples, extended, surplus, open);
}

}  // namespace megatron::data
