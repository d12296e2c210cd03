#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"

namespace megatron::kernels::cpu {
namespace {

// Compares in the order of the contract (kernels/sample.h).
struct Token {
  double logit = 0;
  int32_t id = 0;
  int64_t weight = 0;

  bool operator<(const Token& other) const {
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};

int64_t total_of(std::span<const Token> tokens) {
  int64_t total = 0;
  for (const Token& token : tokens) total += token.weight;
  return total;
}

// Number of leading tokens, in descending order, whose weights add up to `wanted`. Moves these
// tokens to the front.
size_t first_that_weigh(std::vector<Token>& tokens, double wanted) {
  size_t begin = 0, end = tokens.size();
  int64_t before = 0;
  while (end - begin > 1) {
    const size_t half = begin + (end - begin) / 2;
    const auto at = [&](size_t i) { return tokens.begin() + static_cast<std::ptrdiff_t>(i); };
    std::nth_element(at(begin), at(half), at(end));
    const int64_t sum = before + total_of(std::span(tokens).subspan(begin, half - begin));
    if (static_cast<double>(sum) >= wanted) {
      end = half;
    } else {
      before = sum;
      begin = half;
    }
  }
  return end;
}

int32_t sample_of_tokens(std::vector<Token>& tokens, double largest, const double* rules) {
  if (const auto k = static_cast<size_t>(rules[kTopK]); k > 0 && k < tokens.size()) {
    std::nth_element(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(k - 1),
                     tokens.end());
    tokens.resize(k);
  }
  for (Token& token : tokens) {
    token.weight =
        std::llrint(kSampleUnit * std::exp((token.logit - largest) / rules[kTemperature]));
  }
  if (rules[kTopP] < 1) {
    tokens.resize(first_that_weigh(tokens, rules[kTopP] * static_cast<double>(total_of(tokens))));
  }
  std::erase_if(tokens, [&](const Token& token) {
    return static_cast<double>(token.weight) < rules[kMinP] * kSampleUnit;
  });
  std::ranges::sort(tokens, {}, &Token::id);
  const int64_t total = total_of(tokens);
  const double wanted = rules[kUniform] * static_cast<double>(total);
  int64_t sum = 0;
  int32_t id = -1;
  for (const Token& token : tokens) {
    if (static_cast<double>(sum) > wanted || sum == total) break;
    sum += token.weight;
    id = token.id;
  }
  return id;
}

template <class T>
int32_t sample_of_row(const T* logits, int64_t width, const double* rules) {
  if (rules[kTemperature] < 0) return -1;
  std::vector<Token> tokens;
  Token first{.logit = -HUGE_VAL};
  for (int64_t i = 0; i < width; ++i) {
    const double logit = static_cast<float>(logits[i]);
    if (std::isnan(logit)) return -1;
    if (logit == -HUGE_VAL) continue;
    tokens.push_back({.logit = logit, .id = static_cast<int32_t>(i)});
    if (logit > first.logit) first = tokens.back();
  }
  if (std::isinf(first.logit)) return -1;
  return rules[kTemperature] == 0 ? first.id : sample_of_tokens(tokens, first.logit, rules);
}

}  // namespace

void sample(const SampleArgs& args, Stream& stream) {
  for_storage_type("sample", args.logits.dtype(), [&](auto type) {
    using T = decltype(type);
    for_blocks(stream, args.logits.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        args.ids.data<int32_t>()[r] =
            sample_of_row(args.logits.data<T>() + r * args.logits.stride(0), args.logits.size(1),
                          args.rules.data<double>() + r * kSampleRules);
      }
    });
  });
}

}  // namespace megatron::kernels::cpu
