#include "data/sentence_mapping.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"

namespace megatron::data {
namespace {

void check_common(const SentenceDocuments& documents, int64_t tokens, int64_t seed) {
  MG_CHECK(seed >= 1 && seed <= kMaxSentenceSeed,
           "--seed is {}; for data sets of sentences it must lie in [1, {}]", seed,
           kMaxSentenceSeed);
  MG_CHECK(tokens >= 2 && tokens <= std::numeric_limits<int32_t>::max(),
           "samples have room for {} tokens, but must have room for at least 2: raise --seq-length",
           tokens);
  MG_CHECK(documents.lengths.size() <= std::numeric_limits<uint32_t>::max(),
           "the data set has {} sentences; at most {} are supported: divide it into several",
           documents.lengths.size(), std::numeric_limits<uint32_t>::max());
}

// Target lengths of samples, drawn one after the other.
class TargetLengths {
 public:
  explicit TargetLengths(const MappingRequest& request)
      : tokens_(request.tokens), generator_(static_cast<uint32_t>(request.seed)) {
    const double p = request.short_sequence_probability;
    MG_CHECK(p >= 0 && p <= 1, "--short-seq-prob is {}; it must lie in [0, 1]", p);
    if (p == 0) return;
    const double ratio = std::round(1 / p);
    MG_CHECK(ratio <= std::numeric_limits<int32_t>::max(),
             "--short-seq-prob is {}; give 0 for no short samples", p);
    ratio_ = static_cast<uint32_t>(ratio);
  }

  int64_t next() {
    if (ratio_ == 0) return tokens_;
    const auto word = static_cast<uint32_t>(generator_());
    return word % ratio_ == 0 ? 2 + word % (tokens_ - 1) : tokens_;
  }

 private:
  int64_t tokens_;
  uint32_t ratio_ = 0;
  std::mt19937 generator_;
};

// True if one of the sentences is too long.
bool has_long_sentence(const Lengths& lengths, std::pair<int64_t, int64_t> sentences) {
  for (int64_t s = sentences.first; s < sentences.second; ++s)
    if (lengths[s] > kMaxSentenceTokens) return true;
  return false;
}

// Shuffles rows of `width` numbers.
IntegerArray shuffled(std::vector<uint32_t>& rows, size_t width, int64_t seed) {
  const size_t count = rows.size() / width;
  std::mt19937_64 generator(static_cast<uint64_t>(seed) + 1);
  for (size_t i = count; i-- > 1;) {
    const auto j = static_cast<size_t>(generator() % (i + 1));
    std::swap_ranges(&rows[i * width], &rows[i * width] + width, &rows[j * width]);
  }
  IntegerArray array(IntegerType::u32, {static_cast<int64_t>(count), static_cast<int64_t>(width)});
  std::ranges::copy(rows, array.values<uint32_t>().begin());
  return array;
}

}  // namespace

SentenceMapping map_sentences(const SentenceDocuments& documents, const MappingRequest& request) {
  check_common(documents, request.tokens, request.seed);
  TargetLengths targets(request);
  const Lengths& lengths = documents.lengths;
  std::vector<uint32_t> rows;
  int64_t epochs = 0, before = 0, too_few = 0, too_long = 0;
  const auto emit = [&](int64_t begin, int64_t end, int64_t target) {
    for (const int64_t value : {begin, end, target}) rows.push_back(static_cast<uint32_t>(value));
  };
  const auto add_document = [&](std::pair<int64_t, int64_t> sentences) {
    int64_t begin = sentences.first, tokens = 0, target = targets.next();
    for (int64_t s = begin; s < sentences.second; ++s) {
      tokens += lengths[s];
      const int64_t left = sentences.second - s - 1, count = s + 1 - begin;
      const bool full = tokens >= target && left > 1 && count >= request.min_sentences;
      if (!full && left > 0) continue;
      emit(begin, s + 1, target);
      begin = s + 1;
      tokens = 0;
      target = targets.next();
    }
  };
  while (epochs < request.max_epochs && std::ssize(rows) / 3 < request.samples) {
    too_few = too_long = 0;
    before = std::ssize(rows) / 3;
    for (int64_t d = 0; d < documents.documents; ++d) {
      const auto sentences = documents.sentences(documents.first_document + d);
      const int64_t count = sentences.second - sentences.first;
      if (count < std::max<int64_t>(request.min_sentences, 1)) {
        ++too_few;
      } else if (count > 1 && has_long_sentence(lengths, sentences)) {
        ++too_long;
      } else {
        add_document(sentences);
      }
    }
    ++epochs;
    if (rows.empty()) break;
  }
  return {.rows = shuffled(rows, 3, request.seed),
          .epochs = epochs,
          .before_last_epoch = before,
          .too_few_sentences = too_few,
          .too_long_sentences = too_long};
}

IntegerArray map_blocks(const SentenceDocuments& documents, const BlockRequest& request) {
  check_common(documents, request.tokens, request.seed);
  MG_ASSERT(std::ssize(request.title_lengths) >= documents.first_document + documents.documents);
  const int64_t least = request.one_sentence_blocks ? 1 : 2;
  const Lengths& lengths = documents.lengths;
  std::vector<uint32_t> rows;
  for (int64_t epoch = 0; epoch < request.max_epochs && std::ssize(rows) / 4 < request.samples;
       ++epoch) {
    uint32_t block = 0;
    for (int64_t d = documents.first_document; d < documents.first_document + documents.documents;
         ++d) {
      const auto sentences = documents.sentences(d);
      if (sentences.second - sentences.first < least || has_long_sentence(lengths, sentences))
        continue;
      const int64_t target = request.tokens - request.title_lengths[static_cast<size_t>(d)];
      int64_t begin = sentences.first, tokens = 0;
      for (int64_t s = begin; s < sentences.second; ++s) {
        tokens += lengths[s];
        const int64_t left = sentences.second - s - 1;
        if (!(tokens >= target && left >= least && s + 1 - begin >= least) && left > 0) continue;
        for (const int64_t value : {begin, s + 1, d}) rows.push_back(static_cast<uint32_t>(value));
        rows.push_back(block++);
        begin = s + 1;
        tokens = 0;
      }
    }
    if (rows.empty()) break;
  }
  return shuffled(rows, 4, request.seed);
}

}  // namespace megatron::data
