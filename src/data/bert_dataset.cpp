#include "data/bert_dataset.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "base/thread_pool.h"

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
                         BertDatasetConfig config, Split split, std::optional<int64_t> samples)
    : source_(std::move(source)),
      config_(std::move(config)),
      masker_(masking_of(config_), tokens),
      pad_(tokens.pad) {
  MG_CHECK(samples.has_value(),
           "{}: the number of samples of the {} set is not known, but data sets of sentences need "
           "it: give each set of a blend a weight, and drop --full-validation",
           source_->path(), name(split));
  if (config_.megatron_data_order && !config_.allow_ambiguous_pad_tokens &&
      tokens.pad_is_ambiguous()) {
    log::warning(
        "the padding token {} is also a special token, so padding has the id -1 as in Megatron-LM "
        "(--allow-ambiguous-pad-tokens changes that)",
        pad_);
    pad_ = -1;
  }
  ThreadPool pool(1);
  source_->check(pool);
  choose_documents(split);
  build(split, *samples);
}

void BertDataset::choose_documents(Split split) {
  std::pair<int64_t, int64_t> range{0, source_->document_count()};
  if (config_.split) {
    const auto share = parse_split(*config_.split)[static_cast<size_t>(split)];
    MG_CHECK(share.has_value(), "{}: the {} split has weight 0 in --split {}", source_->path(),
             name(split), *config_.split);
    range = split_range(*share, range.second);
  }
  first_document_ = range.first;
  documents_ = range.second - range.first;
  MG_CHECK(documents_ > 0,
           "{}: the {} split gets none of {} documents{}: give it a larger share, weight 0, or "
           "more data",
           source_->path(), name(split), source_->document_count(),
           config_.split ? fmt::format(" (--split {})", *config_.split) : std::string());
}

void BertDataset::build(Split split, int64_t samples) {
  constexpr int64_t kRowBytes = 2 * 3 * sizeof(uint32_t);  // while rows are copied
  const int64_t memory = config_.memory.value_or(available_memory());
  MG_CHECK(samples >= 0 && samples <= memory / 2 / kRowBytes,
           "{}: the mapping of {} {} samples takes more than half of the available {} of memory: "
           "request fewer samples (--train-iters, --train-samples, --global-batch-size, "
           "--eval-iters)",
           source_->path(), samples, name(split), format_bytes(static_cast<double>(memory)));
  const int64_t least = config_.next_sentence ? 2 : 1;
  mapping_.emplace(
      map_sentences({.first_document = first_document_,
                     .documents = documents_,
                     .sentences = [this](int64_t document) { return source_->document(document); },
                     .lengths = source_->lengths()},
                    {.samples = samples,
                     .tokens = config_.sequence_length - kAdded,
                     .seed = config_.seed,
                     .short_sequence_probability = config_.short_sequence_probability,
                     .min_sentences = least}));
  const SentenceMapping& m = *mapping_;
  MG_CHECK(
      samples == 0 || size() > 0,
      "{}: none of the {} documents of the {} split makes a sample: {} have fewer than {} "
      "sentences, {} have a sentence of more than {} tokens. Tokenize the text with "
      "megatron preprocess --split-sentences{}",
      source_->path(), documents_, name(split), m.too_few_sentences, least, m.too_long_sentences,
      kMaxSentenceTokens,
      config_.next_sentence ? ", or train without next sentences (--bert-no-binary-head)" : "");
  if (2 * (m.too_few_sentences + m.too_long_sentences) > documents_)
    log::warning(
        "{}: {} of the {} documents of the {} split make no samples: {} have fewer than {} "
        "sentences, {} have a sentence of more than {} tokens",
        source_->path(), m.too_few_sentences + m.too_long_sentences, documents_, name(split),
        m.too_few_sentences, least, m.too_long_sentences, kMaxSentenceTokens);
}

// Reads the sentences of sample k into `tokens`, and divides and cuts them.
BertDataset::Parts BertDataset::parts_of(int64_t k, RandomState& random,
                                         std::vector<int64_t>& tokens) const {
  MG_CHECK(k >= 0 && k < size(), "{}: sample {} does not exist; the data set has {} samples",
           source_->path(), k, size());
  const auto row = mapping_->rows.values<uint32_t>().subspan(static_cast<size_t>(3 * k), 3);
  const int64_t first = row[0], sentences = int64_t{row[1]} - first, target = row[2];
  int64_t in_a = sentences;
  if (config_.next_sentence) in_a = sentences > 2 ? random.integer(1, sentences) : 1;
  size_t length = 0, border = 0;
  for (int64_t i = 0; i < sentences; ++i) {
    if (i == in_a) border = length;
    length += static_cast<size_t>(source_->length(first + i));
  }
  if (in_a == sentences) border = length;
  tokens.resize(length);
  std::span<int64_t> rest = tokens;
  for (int64_t i = 0; i < sentences; ++i) {
    const auto count = static_cast<size_t>(source_->length(first + i));
    source_->read(first + i, 0, rest.first(count));
    rest = rest.subspan(count);
  }
  for (const int64_t token : tokens)
    MG_CHECK(token >= 0 && token < masker_.tokens().vocabulary_size(),
             "{}: sample {} contains token {}, but the vocabulary has {} entries: was it made "
             "with a different tokenizer?",
             source_->path(), k, token, masker_.tokens().vocabulary_size());
  const std::span<const int64_t> all = tokens;
  Parts parts{.a = all.first(border), .b = all.subspan(border)};
  if (config_.next_sentence && random.uniform() < 0.5) {
    std::swap(parts.a, parts.b);
    parts.swapped = true;
  }
  parts.cut(target, random);
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
  const int64_t target = mapping_->rows[3 * k + 2];
  std::optional<RandomState> global;
  if (config_.megatron_data_order && permuted_lengths == nullptr)
    permuted_lengths = &global.emplace(config_.seed);
  masker_.mask(tokens, target, random, permuted_lengths, example.labels);
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
  // Megatron-LM recognises padding by its id.
  for (size_t i = 0; i < length; ++i) {
    if (sample.text[i] == pad_) sample.padding_mask[i] = pad_;
    if (sample.text[i] == pad_) sample.text[i] = 0;
    if (sample.labels[i] == pad_) sample.labels[i] = 0;
  }
}

}  // namespace megatron::data
