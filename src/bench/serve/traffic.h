// Lengths and arrival times of the requests of `megatron bench serve`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace megatron::bench {

struct RequestLengths {
  int64_t prompt = 0, output = 0;  // tokens

  bool operator==(const RequestLengths&) const = default;
};

// Reads lines {"prompt_tokens": P, "output_tokens": N}, both at least 1; ignores other keys and
// empty lines. Throws Error naming file and line.
std::vector<RequestLengths> read_lengths(const std::string& path);

// Times in seconds from the start at which requests are sent, in order: a Poisson process of `rate`
// requests per second, whose first request is sent after one interval; without a rate all 0.
std::vector<double> arrival_times(int64_t count, std::optional<double> rate, uint64_t seed);

// Token ids below `vocabulary`: the first `shared` are common to all prompts of the seed, the rest
// are specific to prompt `number`.
std::vector<int32_t> prompt_tokens(int64_t length, int64_t shared, int64_t vocabulary,
                                   uint64_t seed, int64_t number);

}  // namespace megatron::bench
