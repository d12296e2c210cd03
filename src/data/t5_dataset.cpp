#include "data/t5_dataset.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"

namespace megatron::data {
namespace {

constexpr int64_t kReserved = 2;  // tokens that an encoder's text leaves free

MaskingOptions masking_of(const T5DatasetConfig& config) {
  MG_CHECK(config.decoder_length >= 1, "the decoder's length is {}; it must be at least 1",
           config.decoder_length);
  MaskingOptions options = config.masking;
  options.only_masks = true;
  options.megatron_data_order = config.megatron_data_order;
  return options;
}

}  // namespace

T5Dataset::T5Dataset(std::shared_ptr<const IndexedDataset> source, const T5Tokens& tokens,
                     T5DatasetConfig config, Split split, std::optional<int64_t> samples,
                     int64_t extended)
    : config_(std::move(config)),
      tokens_(tokens),
      masker_(masking_of(config_), tokens.roles),
      pad_(config_.megatron_data_order
               ? megatron_pad(tokens.roles, config_.allow_ambiguous_pad_tokens)
               : tokens.roles.pad),
      samples_(std::move(source), {.split = split,
                                   .shares = config_.split,
                                   .samples = samples,
                                   .extended = extended,
                                   .tokens = config_.sequence_length - kReserved,
                                   .seed = config_.seed,
                                   .short_sequence_probability = config_.short_sequence_probability,
                                   .min_sentences = 1,
                                   .memory = config_.memory}) {}

std::span<const int64_t> T5Dataset::sentinels(int64_t k, size_t spans) const {
  MG_CHECK(spans <= tokens_.sentinels.size(),
           "{}: sample {} has {} masked spans, but the vocabulary has only {} sentinels: add more "
           "(--vocab-extra-ids), or lower --mask-prob",
           samples_.path(), k, spans, tokens_.sentinels.size());
  return std::span(tokens_.sentinels).first(spans);
}

void T5Dataset::compose(int64_t k, T5Example& example, RandomState* permuted_lengths) const {
  RandomState random((config_.seed + k) & 0xffffffff);
  const int64_t target = samples_.row(k).target;
  std::vector<int64_t> text;
  samples_.read(k, tokens_.roles, text);
  example.truncated = std::ssize(text) > target;
  if (example.truncated) text.resize(static_cast<size_t>(target));
  std::optional<RandomState> global;
  if (config_.megatron_data_order && permuted_lengths == nullptr)
    permuted_lengths = &global.emplace(config_.seed);
  std::vector<int64_t> originals(text.size());
  std::vector<MaskedRun> spans;
  masker_.mask(text, target, random, permuted_lengths, originals, &spans);
  const std::span<const int64_t> sentinels = this->sentinels(k, spans.size());
  example.encoder_tokens.clear();
  example.labels.clear();
  size_t next = 0;
  for (size_t s = 0; s < spans.size(); ++s) {
    const auto [first, last] = spans[s];
    for (; next < first; ++next) example.encoder_tokens.push_back(text[next]);
    example.encoder_tokens.push_back(sentinels[s]);
    example.labels.push_back(sentinels[s]);
    for (; next <= last; ++next) {
      // A special token of the data is never masked, but a span may reach across it.
      const bool masked = originals[next] != TokenMasker::kIgnored;
      if (masked) example.labels.push_back(originals[next]);
      else if (!config_.megatron_data_order) example.labels.push_back(text[next]);
    }
  }
  for (; next < text.size(); ++next) example.encoder_tokens.push_back(text[next]);
  example.decoder_tokens.assign(1, tokens_.begin);
  example.decoder_tokens.insert(example.decoder_tokens.end(), example.labels.begin(),
                                example.labels.end());
  example.labels.push_back(tokens_.end);
  example.loss_mask.assign(example.labels.size(), 1.0f);
  MG_CHECK(std::ssize(example.labels) <= config_.decoder_length,
           "{}: sample {} has {} masked spans, which take {} tokens of the decoder, but its length "
           "is {}: make it longer (--decoder-seq-length), or lower --mask-prob",
           samples_.path(), k, spans.size(), example.labels.size(), config_.decoder_length);
}

void T5Dataset::read(int64_t k, T5Example& example) const {
  compose(k, example, nullptr);
  if (!config_.megatron_data_order) return;
  for (auto* tokens : {&example.encoder_tokens, &example.decoder_tokens, &example.labels})
    std::ranges::replace(*tokens, pad_, int64_t{0});
}

void T5Dataset::read_padded(int64_t k, PaddedT5Sample& sample,
                            RandomState* permuted_lengths) const {
  T5Example example;
  compose(k, example, permuted_lengths);
  sample.truncated = example.truncated;
  sample.encoder_length = std::ssize(example.encoder_tokens);
  sample.decoder_length = std::ssize(example.decoder_tokens);
  sample.text_enc = std::move(example.encoder_tokens);
  sample.text_dec = std::move(example.decoder_tokens);
  sample.labels = std::move(example.labels);
  sample.text_enc.resize(static_cast<size_t>(config_.sequence_length), pad_);
  sample.text_dec.resize(static_cast<size_t>(config_.decoder_length), pad_);
  sample.labels.resize(static_cast<size_t>(config_.decoder_length), -1);
  if (!config_.megatron_data_order) return;
  // Megatron-LM recognizes padding by its id.
  for (auto* tokens : {&sample.text_enc, &sample.text_dec, &sample.labels})
    std::ranges::replace(*tokens, pad_, int64_t{0});
}

std::shared_ptr<const T5Examples> build_t5_examples(const BlendList& list, const T5Tokens& tokens,
                                                    const T5DatasetConfig& config, Split split,
                                                    std::optional<int64_t> samples, double surplus,
                                                    int64_t extended) {
  const auto open = [&](const std::string& prefix, std::optional<int64_t> count, int64_t all) {
    return std::make_shared<const T5Dataset>(std::make_shared<const IndexedDataset>(prefix), tokens,
                                             config, split, count, all);
  };
  return build_examples<T5Example>(list, samples, extended, surplus, open);
}

}  // namespace megatron::data
