#include "data/token_masking.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "data/blend_index.h"

namespace megatron::data {
namespace {

constexpr int64_t kMaxNgram = 1000;
constexpr double kGeometric = 0.2;

}  // namespace

void check_masking(const MaskingOptions& o) {
  MG_CHECK(o.probability > 0 && o.probability < 1,
           "--mask-prob is {}; it must lie between 0 and 1, exclusive", o.probability);
  MG_CHECK(o.max_ngram >= 1 && o.max_ngram <= kMaxNgram,
           "the longest masked run is {} words; it must lie in [1, {}]", o.max_ngram, kMaxNgram);
  MG_CHECK(!(o.geometric && o.permutation),
           "permuted tokens and geometric lengths of masked runs cannot be combined: drop one");
}

namespace {

WeightedChoice ngram_choice(const MaskingOptions& options) {
  check_masking(options);
  std::vector<double> weights;
  for (int64_t n = 1; n <= options.max_ngram; ++n) weights.push_back(1.0 / static_cast<double>(n));
  std::vector<double> probabilities = normalized(weights);
  if (options.longer_ngrams) std::ranges::reverse(probabilities);
  return WeightedChoice(probabilities);
}

}  // namespace

// Positions of the tokens of a sample that may be masked, word by word.
class TokenMasker::Words {
 public:
  Words(std::span<const int64_t> tokens, const BertTokens& roles, const MaskingOptions& options) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == roles.cls || tokens[i] == roles.sep) continue;
      const bool adjacent =
          !positions_.empty() && (options.megatron_data_order || positions_.back() + 1 == i);
      if (!(options.whole_words && adjacent && roles.continues[static_cast<size_t>(tokens[i])]))
        begins_.push_back(positions_.size());
      positions_.push_back(static_cast<uint32_t>(i));
    }
    count_ = begins_.size();
    begins_.push_back(positions_.size());
  }

  size_t count() const { return count_; }
  // Positions of words [first, first + length), or up to the last word.
  std::span<const uint32_t> run(size_t first, size_t length) const {
    const size_t begin = begins_[first], end = begins_[std::min(first + length, count_)];
    return std::span(positions_).subspan(begin, end - begin);
  }
  // The longest run of at most `length` words with at most `room` tokens; empty if there is none.
  std::span<const uint32_t> fitting_run(size_t first, size_t length, double room) const {
    while (length > 0 && static_cast<double>(run(first, length).size()) > room) --length;
    return run(first, length);
  }

 private:
  std::vector<uint32_t> positions_;
  std::vector<size_t> begins_;  // index in positions_ of each word's begin, and the end
  size_t count_ = 0;
};

TokenMasker::TokenMasker(const MaskingOptions& options, BertTokens tokens)
    : options_(options), tokens_(std::move(tokens)), ngrams_(ngram_choice(options)) {
  for (size_t id = 0; id < tokens_.continues.size(); ++id)
    if (tokens_.present[id] && (options_.megatron_data_order || !tokens_.special[id]))
      replacements_.push_back(static_cast<int64_t>(id));
  MG_CHECK(
      options_.only_masks || !replacements_.empty(),
      "the tokenizer has only special tokens, but masked tokens are replaced by ordinary ones");
}

size_t TokenMasker::draw_length(RandomState& random) const {
  if (!options_.geometric) return ngrams_.draw(random) + 1;
  return static_cast<size_t>(std::min(random.geometric(kGeometric), options_.max_ngram));
}

void TokenMasker::replace(int64_t& token, RandomState& random) const {
  constexpr double kMasked = 0.8, kKept = 0.5;  // kKept: share of the rest that does not change
  if (options_.only_masks || random.uniform() < kMasked) {
    token = tokens_.mask;
  } else if (random.uniform() >= kKept) {
    token = replacements_[static_cast<size_t>(random.integer(0, replacements()))];
  }
}

void TokenMasker::mask(std::span<int64_t> tokens, int64_t target, RandomState& random,
                       RandomState* lengths, std::span<int64_t> labels,
                       std::vector<MaskedRun>* runs) const {
  MG_ASSERT(labels.size() == tokens.size());
  std::ranges::fill(labels, kIgnored);
  const Words words(tokens, tokens_, options_);
  const double p = options_.probability, count = static_cast<double>(tokens.size());
  const double limit =
      std::min(p * static_cast<double>(target), std::max(1.0, std::nearbyint(p * count)));
  std::vector<uint32_t> order(words.count());
  std::iota(order.begin(), order.end(), 0u);
  random.shuffle(std::span(order));
  size_t masked = 0;
  if (runs != nullptr) runs->clear();
  for (const uint32_t first : order) {
    if (static_cast<double>(masked) >= limit) break;
    const size_t length = draw_length(random);
    const auto run = words.fitting_run(first, length, limit - static_cast<double>(masked));
    if (std::ranges::any_of(run, [&](uint32_t at) { return labels[at] != kIgnored; })) continue;
    for (const uint32_t at : run) {
      labels[at] = tokens[at];
      replace(tokens[at], random);
    }
    masked += run.size();
    if (runs != nullptr && !run.empty()) runs->push_back({run.front(), run.back()});
  }
  if (runs != nullptr) std::ranges::sort(*runs, {}, &MaskedRun::first);
  random.shuffle(std::span(order));
  if (options_.permutation)
    permute(tokens, words, order, limit, random, lengths != nullptr ? *lengths : random, labels);
}

// Chooses runs of tokens that are not masked and exchanges them among each other.
void TokenMasker::permute(std::span<int64_t> tokens, const Words& words,
                          std::span<const uint32_t> order, double limit, RandomState& random,
                          RandomState& lengths, std::span<int64_t> labels) const {
  std::vector<uint32_t> chosen;
  for (const uint32_t first : order) {
    const auto count = static_cast<double>(chosen.size());
    if (count >= limit) break;
    const auto run = words.fitting_run(first, draw_length(lengths), limit - count);
    if (std::ranges::any_of(run, [&](uint32_t at) { return labels[at] != kIgnored; })) continue;
    for (const uint32_t at : run) labels[at] = tokens[at];
    chosen.insert(chosen.end(), run.begin(), run.end());
  }
  std::ranges::sort(chosen);
  std::vector<uint32_t> from = chosen;
  random.shuffle(std::span(from));
  for (size_t i = 0; i < chosen.size(); ++i) tokens[chosen[i]] = labels[from[i]];
}

}  // namespace megatron::data
