#include "data/split.h"

#include <charconv>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace megatron::data {
namespace {

bool part_of_number(char c) { return (c >= '0' && c <= '9') || c == '.'; }

}  // namespace

std::string_view name(Split split) {
  constexpr std::string_view kNames[] = {"train", "valid", "test"};
  return kNames[static_cast<int>(split)];
}

SplitMatrix parse_split(std::string_view text) {
  std::vector<double> weights;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    MG_CHECK(!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+'),
             "--split '{}': expected numbers such as 969,30,1", text);
    size_t end = at;
    while (end < text.size() && part_of_number(text[end])) ++end;
    if (end == at) {
      ++at;
      continue;
    }
    double weight = 0;
    const auto result =
        std::from_chars(text.data() + at, text.data() + end, weight, std::chars_format::fixed);
    MG_CHECK(result.ec == std::errc() && result.ptr == text.data() + end && std::isfinite(weight),
             "--split '{}': '{}' is not a number", text, text.substr(at, end - at));
    weights.push_back(weight);
    at = end;
  }
  MG_CHECK(!weights.empty() && weights.size() <= 3,
           "--split '{}' has {} numbers; give one to three: train,valid,test", text,
           weights.size());
  weights.resize(3);
  double sum = 0;
  for (const double weight : weights) sum += weight;
  MG_CHECK(sum > 0 && std::isfinite(sum),
           "--split '{}': the numbers add up to {}; the sum must be positive and finite", text,
           sum);

  SplitMatrix matrix;
  double begin = 0;
  for (size_t i = 0; i < 3; ++i) {
    const double share = weights[i] / sum;
    const double end = i == 0 ? share : begin + share;
    if (share > 0) matrix[i] = SplitShare{begin, end};
    begin = end;
  }
  return matrix;
}

std::pair<int64_t, int64_t> split_range(const SplitShare& share, int64_t count) {
  const double n = static_cast<double>(count);
  return {static_cast<int64_t>(std::nearbyint(share.begin * n)),
          static_cast<int64_t>(std::nearbyint(share.end * n))};
}

}  // namespace megatron::data
