#include "inference/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include "base/philox.h"

namespace megatron::inference {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();  // score of excluded tokens

// Its weight is e^((score - largest) / temperature), the likeliest one's 1.
struct Candidate {
  int32_t id = 0;
  double weight = 0;
};

// Returns NaN if one score is NaN. Works in lanes, which the compiler vectorizes.
template <class T>
T largest_of(std::span<const T> scores) {
  constexpr size_t kLanes = 32;
  std::array<T, kLanes> most;
  most.fill(-std::numeric_limits<T>::infinity());
  // As wide as a score, so that both are compared in one vector.
  std::array<std::conditional_t<sizeof(T) == 4, int32_t, int64_t>, kLanes> nan = {};
  const auto take = [&](size_t lane, T score) {
    most[lane] = score > most[lane] ? score : most[lane];
    nan[lane] |= score != score ? 1 : 0;
  };
  size_t i = 0;
  for (; i + kLanes <= scores.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) take(lane, scores[i + lane]);
  for (; i < scores.size(); ++i) take(0, scores[i]);
  if (std::ranges::find(nan, 1) != nan.end()) return std::numeric_limits<T>::quiet_NaN();
  return *std::ranges::max_element(most);
}

template <class T>
int32_t first_with(std::span<const T> scores, T score) {
  return static_cast<int32_t>(std::ranges::find(scores, score) - scores.begin());
}

// The largest score of each of many groups of up to 64: group g has the scores with indices
// kBlock * (g / kLanes) + g % kLanes + kLanes * i.
template <class T>
struct Groups {
  static constexpr size_t kLanes = 32, kBlock = 64 * kLanes;

  explicit Groups(std::span<const T> scores)
      : most((scores.size() + kBlock - 1) / kBlock * kLanes, -std::numeric_limits<T>::infinity()) {
    for (size_t begin = 0; begin < scores.size(); begin += kBlock) {
      const auto block = scores.subspan(begin, std::min(kBlock, scores.size() - begin));
      std::array<T, kLanes> top;
      top.fill(-std::numeric_limits<T>::infinity());
      size_t i = 0;
      for (; i + kLanes <= block.size(); i += kLanes) {
        for (size_t lane = 0; lane < kLanes; ++lane)
          top[lane] = block[i + lane] > top[lane] ? block[i + lane] : top[lane];
      }
      for (size_t lane = 0; i + lane < block.size(); ++lane)
        top[lane] = std::max(top[lane], block[i + lane]);
      std::ranges::copy(top, most.begin() + static_cast<std::ptrdiff_t>(begin / kBlock * kLanes));
    }
  }

  std::vector<T> most;
};

// Ids among which are those with the `count` largest scores.
template <class T>
std::vector<int32_t> likely_ids(std::span<const T> scores, size_t count) {
  std::vector<int32_t> ids;
  Groups<T> groups(scores);
  if (count >= groups.most.size()) {
    ids.resize(scores.size());
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }
  // At least `count` scores are as large as this, each in a group of its own.
  std::vector<T> sorted = groups.most;
  const auto last = sorted.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
  for (size_t g = 0; g < groups.most.size(); ++g) {
    if (groups.most[g] < *last) continue;
    const size_t begin = g / groups.kLanes * groups.kBlock;
    const size_t end = std::min(begin + groups.kBlock, scores.size());
    for (size_t i = begin + g % groups.kLanes; i < end; i += groups.kLanes)
      if (!(scores[i] < *last)) ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

// The ids with the `count` largest scores, in no order; 0 < count. Of equal ones the lower.
template <class T>
std::vector<int32_t> select(std::span<const T> scores, size_t count) {
  std::vector<int32_t> ids = likely_ids(scores, count);
  const auto before = [&](int32_t a, int32_t b) {
    const T x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count - 1), ids.end(),
                   before);
  ids.resize(count);
  return ids;
}

double* score_of(std::span<double> scores, int32_t id) {
  const auto index = static_cast<size_t>(id);
  return id >= 0 && index < scores.size() ? &scores[index] : nullptr;
}

void penalize_repetition(std::span<double> scores, std::span<const int32_t> tokens,
                         double penalty) {
  constexpr double kMax = std::numeric_limits<double>::max();
  std::vector<bool> seen(scores.size());
  for (const int32_t id : tokens) {
    double* score = score_of(scores, id);
    if (score == nullptr || seen[static_cast<size_t>(id)] || std::isinf(*score)) continue;
    seen[static_cast<size_t>(id)] = true;
    *score = std::clamp(*score > 0 ? *score / penalty : *score * penalty, -kMax, kMax);
  }
}

void penalize_presence(std::span<double> scores, std::span<const int32_t> generated,
                       const SamplingOptions& options) {
  std::vector<int32_t> counts(scores.size());
  for (const int32_t id : generated)
    if (score_of(scores, id) != nullptr) ++counts[static_cast<size_t>(id)];
  for (const int32_t id : generated) {
    double* score = score_of(scores, id);
    if (score == nullptr || counts[static_cast<size_t>(id)] == 0) continue;
    *score -= counts[static_cast<size_t>(id)] * options.frequency_penalty;
    *score -= options.presence_penalty;
    counts[static_cast<size_t>(id)] = 0;
  }
}

bool is_set(std::span<const uint64_t> allowed, size_t id) {
  return (allowed[id / 64] >> (id % 64) & 1) != 0;
}

std::span<const int32_t> generated(const TextSoFar& text) {
  return text.tokens.subspan(text.prompt);
}

bool may_end(const TextSoFar& text, const SamplingOptions& options) {
  return std::ssize(generated(text)) >= options.min_tokens;
}

// The logits after all processors before temperature.
std::vector<double> process(std::span<const float> logits, const TextSoFar& text,
                            const SamplingOptions& options) {
  std::vector<double> scores(logits.begin(), logits.end());
  for (const auto& [id, bias] : options.logit_bias)
    if (double* score = score_of(scores, id)) *score += bias;
  if (options.repetition_penalty != 1)
    penalize_repetition(scores, text.tokens, options.repetition_penalty);
  if (!may_end(text, options)) {
    for (const int32_t id : text.end_tokens)
      if (double* score = score_of(scores, id)) *score = kNever;
  }
  if (!text.allowed.empty()) {
    for (size_t id = 0; id < scores.size(); ++id)
      if (!is_set(text.allowed, id)) scores[id] = kNever;
  }
  if (options.presence_penalty != 0 || options.frequency_penalty != 0)
    penalize_presence(scores, generated(text), options);
  return scores;
}

[[noreturn]] void fail_with_nothing_allowed(size_t vocabulary, const TextSoFar& text,
                                            const SamplingOptions& options) {
  bool any = text.allowed.empty();
  for (size_t id = 0; id < vocabulary && !any; ++id) any = is_set(text.allowed, id);
  const std::string where =
      fmt::format("no token can be sampled after {} generated ones: ", generated(text).size());
  if (!any) throw NothingAllowed(where + "the grammar of the output does not allow any");
  if (may_end(text, options)) {
    throw NothingAllowed(
        where + "all tokens that the grammar of the output allows have a logit of -infinity");
  }
  throw NothingAllowed(where + fmt::format("the grammar only allows the output to end, but at "
                                           "least {} tokens are required; lower that minimum",
                                           options.min_tokens));
}

// In order of id.
template <class T>
std::vector<Candidate> weigh(std::span<const T> scores, double largest,
                             const SamplingOptions& options) {
  const auto k = static_cast<size_t>(options.top_k);
  const bool all = k == 0 || k >= scores.size();
  std::vector<int32_t> ids;
  if (!all) {
    ids = select(scores, k);
    std::ranges::sort(ids);
  }
  const size_t count = all ? scores.size() : k;
  std::vector<Candidate> candidates;
  candidates.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const int32_t id = all ? static_cast<int32_t>(i) : ids[i];
    const double score = scores[static_cast<size_t>(id)];
    if (score == kNever) continue;
    candidates.push_back({id, std::exp((score - largest) / options.temperature)});
  }
  return candidates;
}

double total_of(std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

// Returns the least likely of the smallest set of most likely candidates whose total weight is
// `wanted`; all candidates together reach it. Halves the search range in each step.
template <class Before>
Candidate last_within(std::span<Candidate> candidates, double wanted, Before before) {
  while (candidates.size() > 1) {
    const size_t half = candidates.size() / 2;
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(half),
                     candidates.end(), before);
    const double weight = total_of(candidates.first(half));
    if (weight >= wanted) {
      candidates = candidates.first(half);
    } else {
      wanted -= weight;
      candidates = candidates.subspan(half);
    }
  }
  return candidates[0];
}

void cut_by_share(std::vector<Candidate>& candidates, double top_p) {
  const double total = total_of(candidates);
  // All that are lighter than this together weigh too little to be needed.
  const double least = (1 - top_p) * total / static_cast<double>(candidates.size());
  std::vector<Candidate> heavy;
  for (const Candidate& c : candidates)
    if (c.weight >= least) heavy.push_back(c);
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
  };
  const Candidate last = last_within(std::span(heavy), top_p * total, before);
  std::erase_if(candidates, [&](const Candidate& c) { return before(last, c); });
}

// The candidates among tokens with these scores, in order of id.
template <class T>
std::vector<Candidate> candidates_among(std::span<const T> scores, T largest,
                                        const SamplingOptions& options) {
  if (options.temperature == 0) return {{first_with(scores, largest), 1}};
  std::vector<Candidate> candidates = weigh(scores, largest, options);
  if (options.top_p < 1) cut_by_share(candidates, options.top_p);
  if (options.min_p > 0)
    std::erase_if(candidates, [&](const Candidate& c) { return c.weight < options.min_p; });
  return candidates;
}

// The candidates from which draw() samples, in order of id.
std::vector<Candidate> candidates_of(std::span<const float> logits, const TextSoFar& text,
                                     const SamplingOptions& options) {
  MG_ASSERT(!logits.empty() && text.prompt <= text.tokens.size());
  MG_ASSERT(text.allowed.empty() || text.allowed.size() * 64 >= logits.size());
  const float largest_logit = checked_largest(logits);
  if (!changes_logits(text, options)) return candidates_among(logits, largest_logit, options);
  const std::vector<double> scores = process(logits, text, options);
  const double largest = largest_of(std::span(scores));
  if (largest == kNever) fail_with_nothing_allowed(logits.size(), text, options);
  return candidates_among(std::span(scores), largest, options);
}

}  // namespace

float checked_largest(std::span<const float> logits) {
  const float largest = largest_of(logits);
  if (std::isnan(largest)) {
    const auto is_nan = [](float logit) { return std::isnan(logit); };
    fail(
        "the model's logit of token {} is not a number; its weights hold NaN or infinity, or it "
        "overflows (try without --bf16)",
        std::ranges::find_if(logits, is_nan) - logits.begin());
  }
  MG_CHECK(
      std::isfinite(largest),
      "the model's largest logit is {}; its weights hold NaN or infinity, or it overflows (try "
      "without --bf16)",
      largest);
  return largest;
}

std::string as_flag(std::string_view option) {
  std::string flag = "--" + std::string(option);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

void SamplingOptions::check(OptionName name) const {
  MG_CHECK(temperature >= 0 && std::isfinite(temperature),
           "{} is {}; it must be 0 (the most likely token) or more", name("temperature"),
           temperature);
  MG_CHECK(top_k >= 0, "{} is {}; it must be 0 (all tokens) or more", name("top_k"), top_k);
  MG_CHECK(top_p > 0 && top_p <= 1, "{} is {}; it must lie in (0, 1], 1: all tokens", name("top_p"),
           top_p);
  MG_CHECK(min_p >= 0 && min_p <= 1, "{} is {}; it must lie in [0, 1], 0: all tokens",
           name("min_p"), min_p);
  MG_CHECK(repetition_penalty > 0 && std::isfinite(repetition_penalty),
           "{} is {}; it must be above 0, 1: none", name("repetition_penalty"), repetition_penalty);
  MG_CHECK(std::abs(presence_penalty) <= 2, "{} is {}; it must lie in [-2, 2], 0: none",
           name("presence_penalty"), presence_penalty);
  MG_CHECK(std::abs(frequency_penalty) <= 2, "{} is {}; it must lie in [-2, 2], 0: none",
           name("frequency_penalty"), frequency_penalty);
  for (const auto& [id, bias] : logit_bias) {
    MG_CHECK(std::abs(bias) <= 100, "{} of token {} is {}; it must lie in [-100, 100]",
             name("logit_bias"), id, bias);
  }
  MG_CHECK(min_tokens >= 0, "{} is {}; it cannot be negative", name("min_tokens"), min_tokens);
}

bool changes_logits(const TextSoFar& text, const SamplingOptions& o) {
  return !o.logit_bias.empty() || o.repetition_penalty != 1 || o.presence_penalty != 0 ||
         o.frequency_penalty != 0 || !may_end(text, o) || !text.allowed.empty();
}

double uniform_of(const SamplingOptions& options, uint64_t request, size_t position) {
  return RandomStream(options.seed, "generate/" + std::to_string(request)).uniform(position);
}

int32_t draw(std::span<const float> logits, const TextSoFar& text, const SamplingOptions& options,
             uint64_t request) {
  const std::vector<Candidate> candidates = candidates_of(logits, text, options);
  if (candidates.size() == 1) return candidates[0].id;
  const double wanted = uniform_of(options, request, text.tokens.size()) * total_of(candidates);
  double sum = 0;
  for (const Candidate& c : candidates) {
    sum += c.weight;
    if (sum > wanted) return c.id;
  }
  MG_ASSERT(false);  // unreachable: the sum now equals the total, which is larger
  return 0;
}

std::vector<double> probabilities(std::span<const float> logits, const TextSoFar& text,
                                  const SamplingOptions& options) {
  const std::vector<Candidate> candidates = candidates_of(logits, text, options);
  const double total = total_of(candidates);
  std::vector<double> all(logits.size());
  for (const Candidate& c : candidates) all[static_cast<size_t>(c.id)] = c.weight / total;
  return all;
}

std::vector<int32_t> most_likely(std::span<const float> logits, int64_t k) {
  const size_t count = std::min(logits.size(), static_cast<size_t>(std::max<int64_t>(k, 0)));
  if (count == 0) return {};
  std::vector<int32_t> ids = select(logits, count);
  std::ranges::sort(ids, [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  return ids;
}

}  // namespace megatron::inference
