// The requests of `megatron bench serve`: how long they are and when they are sent.
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

// Lines {"prompt_tokens": P, "output_tokens": N}, both at least 1; other keys are ignored, and so
// are empty lines. Throws Error naming file and line.
std::vector<RequestLengths> read_lengths(const std::string& path);

// Seconds from the beginning at which requests are sent, in order: a Poisson process of `rate`
// requests a second, of which the first is sent after one of its intervals; without a rate all 0.
std::vector<double> arrival_times(int64_t count, std::optional<double> rate, uint64_t seed);

// Token ids below `vocabulary`: the first `shared` are those of every other prompt of the seed, the
// rest those of prompt `number` alone.
std::vector<int32_t> prompt_tokens(int64_t length, int64_t shared, int64_t vocabulary,
                                   uint64_t seed, int64_t number);

}  // namespace megatron::bench
