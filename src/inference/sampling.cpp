#include "inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/philox.h"

namespace megatron::inference {
namespace {

// Ids in order of falling score, equal ones by id; sorted only as far as it is looked at.
template <class T>
class Ranking {
 public:
  explicit Ranking(std::span<const T> scores) : scores_(scores), ids_(scores.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }
  size_t operator[](size_t rank) {
    if (rank >= sorted_) sort_to(std::max<size_t>({64, 8 * sorted_, rank + 1}));
    return static_cast<size_t>(ids_[rank]);
  }
  void sort_to(size_t count) {
    count = std::min(count, ids_.size());
    const auto before = [this](int32_t a, int32_t b) {
      const T x = scores_[static_cast<size_t>(a)], y = scores_[static_cast<size_t>(b)];
      return x > y || (x == y && a < b);
    };
    const auto begin = ids_.begin() + static_cast<std::ptrdiff_t>(sorted_),
               end = ids_.begin() + static_cast<std::ptrdiff_t>(count);
    if ((end - begin) * kFew < ids_.end() - begin) {
      std::partial_sort(begin, end, ids_.end(), before);  // reads most ids once
    } else {
      if (end != ids_.end()) std::nth_element(begin, end, ids_.end(), before);
      std::sort(begin, end, before);
    }
    sorted_ = std::max(sorted_, count);
  }

 private:
  static constexpr std::ptrdiff_t kFew = 64;  // a small part: one in so many

  std::span<const T> scores_;
  std::vector<int32_t> ids_;
  size_t sorted_ = 0;
};

void penalize(std::vector<double>& scores, std::span<const int32_t> tokens, double penalty) {
  std::vector<int32_t> seen(tokens.begin(), tokens.end());
  std::ranges::sort(seen);
  seen.erase(std::ranges::unique(seen).begin(), seen.end());
  for (const int32_t id : seen) {
    if (id < 0 || static_cast<size_t>(id) >= scores.size()) continue;
    double& score = scores[static_cast<size_t>(id)];
    score =
        score > 0 ? std::min(score / penalty, std::numeric_limits<double>::max()) : score * penalty;
  }
}

size_t index_of_largest(const std::vector<double>& scores) {
  return static_cast<size_t>(std::ranges::max_element(scores) - scores.begin());
}

// Tokens by rank with their weights e^((score - largest) / temperature), and how many are left by
// the cuts.
class Candidates {
 public:
  Candidates(std::span<const double> scores, double largest, const SamplingOptions& options)
      : scores_(scores),
        largest_(largest),
        temperature_(options.temperature),
        ranking_(scores),
        count_(scores.size()) {
    const auto k = static_cast<size_t>(options.top_k);
    if (k > 0 && k < count_) {
      count_ = k;
      ranking_.sort_to(k);
      for (size_t i = 0; i < k; ++i) total_ += weight(i);
    } else {
      for (size_t id = 0; id < count_; ++id) total_ += weight_of(id);
    }
    if (options.top_p < 1) cut_by_share(options.top_p);
    if (options.min_p > 0) cut_by_ratio(options.min_p);
  }

  // The first token whose cumulative weight exceeds `share` of the total; share in [0, 1).
  int32_t at(double share) {
    double sum = 0;
    size_t last = 0;  // of those with any weight
    for (size_t i = 0; i < count_; ++i) {
      const double w = weight(i);
      if (w == 0) break;
      sum += w;
      last = i;
      if (sum > share * total_) break;
    }
    return static_cast<int32_t>(ranking_[last]);
  }

 private:
  double weight_of(size_t id) const { return std::exp((scores_[id] - largest_) / temperature_); }
  double weight(size_t rank) { return weight_of(ranking_[rank]); }

  void cut_by_share(double top_p) {
    double sum = 0;
    size_t kept = 0;
    while (kept < count_ && sum < top_p * total_) sum += weight(kept++);
    keep(kept, sum);
  }
  void cut_by_ratio(double min_p) {
    double sum = 0;
    size_t kept = 0;
    for (; kept < count_ && weight(kept) >= min_p; ++kept) sum += weight(kept);  // the first has 1
    keep(kept, sum);
  }
  void keep(size_t count, double sum) {
    count_ = count;
    total_ = sum;
  }

  std::span<const double> scores_;
  double largest_, temperature_;
  Ranking<double> ranking_;
  size_t count_;
  double total_ = 0;
};

}  // namespace

void SamplingOptions::check() const {
  MG_CHECK(temperature >= 0 && std::isfinite(temperature),
           "--temperature is {}; it must be 0 (the most likely token) or more", temperature);
  MG_CHECK(top_k >= 0, "--top-k is {}; it must be 0 (all tokens) or more", top_k);
  MG_CHECK(top_p > 0 && top_p <= 1, "--top-p is {}; it must lie in (0, 1], 1: all tokens", top_p);
  MG_CHECK(min_p >= 0 && min_p <= 1, "--min-p is {}; it must lie in [0, 1], 0: all tokens", min_p);
  MG_CHECK(repetition_penalty > 0 && std::isfinite(repetition_penalty),
           "--repetition-penalty is {}; it must be above 0, 1: none", repetition_penalty);
}

int32_t draw(std::span<const float> logits, std::span<const int32_t> tokens,
             const SamplingOptions& options, uint64_t request) {
  MG_ASSERT(!logits.empty());
  std::vector<double> scores(logits.begin(), logits.end());
  for (size_t id = 0; id < scores.size(); ++id) {
    MG_CHECK(
        !std::isnan(scores[id]),
        "the model's logit of token {} is not a number; its weights hold NaN or infinity, or it "
        "overflows (try without --bf16)",
        id);
  }
  if (options.repetition_penalty != 1) penalize(scores, tokens, options.repetition_penalty);
  const size_t top = index_of_largest(scores);
  const double largest = scores[top];
  MG_CHECK(
      std::isfinite(largest),
      "the model's largest logit is {}; its weights hold NaN or infinity, or it overflows (try "
      "without --bf16)",
      largest);
  if (options.temperature == 0) return static_cast<int32_t>(top);
  const RandomStream stream(options.seed, "generate/" + std::to_string(request));
  return Candidates(scores, largest, options).at(stream.uniform(tokens.size()));
}

std::vector<int32_t> most_likely(std::span<const float> logits, int64_t k) {
  Ranking<float> ranking(logits);
  const size_t count = std::min(logits.size(), static_cast<size_t>(std::max<int64_t>(k, 0)));
  ranking.sort_to(count);
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(ranking[i]);
  return ids;
}

}  // namespace megatron::inference
