#include "data/sentence_samples.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "base/thread_pool.h"

namespace megatron::data {

SentenceSamples::SentenceSamples(std::shared_ptr<const IndexedDataset> source,
                                 const SentenceRequest& request)
    : source_(std::move(source)) {
  MG_CHECK(request.samples.has_value(),
           "{}: the number of samples of the {} set is not known, but data sets of sentences need "
           "it: give each set of a blend a weight, and drop --full-validation",
           path(), name(request.split));
  ThreadPool pool(1);
  source_->check(pool);
  choose_documents(request);
  build(request);
}

void SentenceSamples::choose_documents(const SentenceRequest& request) {
  std::pair<int64_t, int64_t> range{0, source_->document_count()};
  if (request.shares) {
    const auto share = parse_split(*request.shares)[static_cast<size_t>(request.split)];
    MG_CHECK(share.has_value(), "{}: the {} split has weight 0 in --split {}", path(),
             name(request.split), *request.shares);
    range = split_range(*share, range.second);
  }
  first_document_ = range.first;
  documents_ = range.second - range.first;
  MG_CHECK(documents_ > 0,
           "{}: the {} split gets none of {} documents{}: give it a larger share, weight 0, or "
           "more data",
           path(), name(request.split), source_->document_count(),
           request.shares ? fmt::format(" (--split {})", *request.shares) : std::string());
}

void SentenceSamples::build(const SentenceRequest& request) {
  constexpr int64_t kRowBytes = 2 * 3 * sizeof(uint32_t);  // while rows are copied
  const int64_t samples = *request.samples, least = request.min_sentences,
                all = std::max(samples, request.extended);
  const int64_t memory = request.memory.value_or(available_memory());
  MG_CHECK(samples >= 0 && all <= memory / 2 / kRowBytes,
           "{}: the mapping of {} {} samples takes more than half of the available {} of memory: "
           "request fewer samples (--train-iters, --train-samples, --global-batch-size, "
           "--eval-iters)",
           path(), all, name(request.split), format_bytes(static_cast<double>(memory)));
  const auto add = [&](MappingRequest mapping) {
    mapping.tokens = request.tokens;
    mapping.short_sequence_probability = request.short_sequence_probability;
    mapping.min_sentences = least;
    mappings_.push_back(map_sentences(
        {.first_document = first_document_,
         .documents = documents_,
         .sentences = [this](int64_t document) { return source_->document(document); },
         .lengths = source_->lengths()},
        mapping));
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + mappings_.back().rows.shape()[0]);
  };
  add({.samples = samples, .seed = request.seed});
  const SentenceMapping& m = mapping();
  const std::string sentences = fmt::format("{} sentence{}", least, least == 1 ? "" : "s");
  MG_CHECK(samples == 0 || size() > 0,
           "{}: none of the {} documents of the {} split makes a sample: {} have fewer than {}, "
           "{} have a sentence of more than {} tokens. Tokenize the text with megatron preprocess "
           "--split-sentences{}",
           path(), documents_, name(request.split), m.too_few_sentences, sentences,
           m.too_long_sentences, kMaxSentenceTokens,
           least > 1 ? ", or train without next sentences (--bert-no-binary-head)" : "");
  if (2 * (m.too_few_sentences + m.too_long_sentences) > documents_)
    log::warning(
        "{}: {} of the {} documents of the {} split make no samples: {} have fewer than {}, {} "
        "have a sentence of more than {} tokens",
        path(), m.too_few_sentences + m.too_long_sentences, documents_, name(request.split),
        m.too_few_sentences, sentences, m.too_long_sentences, kMaxSentenceTokens);
  if (least == 1) warn_of_long_sentences(request);
  int64_t seed = request.seed;
  for (int64_t epochs = 1; size() > 0 && size() < request.extended; epochs *= 2) {
    seed = seed % kMaxSentenceSeed + 1;
    add({.samples = std::numeric_limits<int64_t>::max(), .max_epochs = epochs, .seed = seed});
  }
}

// A sample is cut at its target length, and begins with a sentence: the rest of it is never read.
void SentenceSamples::warn_of_long_sentences(const SentenceRequest& request) const {
  int64_t cut = 0;
  for (int64_t d = first_document_; d < first_document_ + documents_; ++d) {
    const auto [first, end] = source_->document(d);
    cut += end - first == 1 && source_->lengths()[first] > request.tokens ? 1 : 0;
  }
  if (2 * cut <= documents_) return;
  log::warning(
      "{}: {} of the {} documents of the {} split are one sentence of more than {} tokens, and the "
      "tokens beyond these are never read. Tokenize the text with megatron preprocess "
      "--split-sentences, or divide text without sentences into shorter documents",
      path(), cut, documents_, name(request.split), request.tokens);
}

bool SentenceSamples::keeps_order(int64_t samples) const {
  const SentenceMapping& m = mapping();
  return samples > m.before_last_epoch && samples <= m.rows.shape()[0];
}

SentenceSamples::Row SentenceSamples::row(int64_t k) const {
  MG_CHECK(k >= 0 && k < size(), "{}: sample {} does not exist; the data set has {} samples",
           path(), k, size());
  const auto part = static_cast<size_t>(std::ranges::upper_bound(ends_, k) - ends_.begin());
  if (part > 0) k -= ends_[part - 1];
  const IntegerArray& rows = mappings_[part].rows;
  return {.first = rows[3 * k], .end = rows[3 * k + 1], .target = rows[3 * k + 2]};
}

void SentenceSamples::read(int64_t k, const BertTokens& vocabulary,
                           std::vector<int64_t>& tokens) const {
  const Row sample = row(k);
  size_t length = 0;
  for (int64_t s = sample.first; s < sample.end; ++s)
    length += static_cast<size_t>(source_->length(s));
  tokens.resize(length);
  std::span<int64_t> rest = tokens;
  for (int64_t s = sample.first; s < sample.end; ++s) {
    const auto count = static_cast<size_t>(source_->length(s));
    source_->read(s, 0, rest.first(count));
    rest = rest.subspan(count);
  }
  for (const int64_t token : tokens)
    MG_CHECK(token >= 0 && token < vocabulary.vocabulary_size(),
             "{}: sample {} contains token {}, but the vocabulary has {} entries: was it made "
             "with a different tokenizer?",
             path(), k, token, vocabulary.vocabulary_size());
}

}  // namespace megatron::data
