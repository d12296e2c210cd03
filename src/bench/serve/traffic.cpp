#include "bench/serve/traffic.h"

#include <fmt/core.h>

#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/philox.h"

namespace megatron::bench {

std::vector<RequestLengths> read_lengths(const std::string& path) {
  constexpr int64_t kMax = int64_t{1} << 24;
  std::vector<RequestLengths> all;
  std::istringstream lines(read_file(path));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string place = fmt::format("{}, line {}", path, number);
    const Json json = Json::parse(line, place);
    MG_CHECK(json.is_object(), "{}: it must be an object with prompt_tokens and output_tokens",
             place);
    const auto length = [&](std::string_view key) {
      const Json* value = json.find(key);
      MG_CHECK(value != nullptr && value->is_integer(), "{}: {} must be an integer", place, key);
      const int64_t tokens = value->as_integer();
      MG_CHECK(tokens >= 1 && tokens <= kMax, "{}: {} is {}; it must lie in [1, {}]", place, key,
               tokens, kMax);
      return tokens;
    };
    all.push_back({length("prompt_tokens"), length("output_tokens")});
  }
  MG_CHECK(!all.empty(),
           "{} has no lines; each must be {{\"prompt_tokens\": P, \"output_tokens\": N}}", path);
  return all;
}

std::vector<double> arrival_times(int64_t count, std::optional<double> rate, uint64_t seed) {
  std::vector<double> times(static_cast<size_t>(count), 0.0);
  if (!rate) return times;
  const RandomStream random(seed, "arrivals");
  double now = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    now -= std::log1p(-random.uniform(i)) / *rate;  // exponential with mean 1 / rate
    times[i] = now;
  }
  return times;
}

std::vector<int32_t> prompt_tokens(int64_t length, int64_t shared, int64_t vocabulary,
                                   uint64_t seed, int64_t number) {
  const RandomStream common(seed, "shared prefix"), own(seed, fmt::format("prompt {}", number));
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(length));
  for (int64_t t = 0; t < length; ++t) {
    const uint64_t bits = (t < shared ? common : own).bits(static_cast<uint64_t>(t));
    tokens.push_back(static_cast<int32_t>(bits % static_cast<uint64_t>(vocabulary)));
  }
  return tokens;
}

}  // namespace megatron::bench
