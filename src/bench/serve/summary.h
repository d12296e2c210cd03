// Rates and distributions of a load's times.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "bench/serve/load.h"

namespace megatron::bench {

// Seconds.
struct Distribution {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};

// None if there are no values.
std::optional<Distribution> distribution(std::vector<double> values);

struct LoadSummary {
  int64_t requests = 0, complete = 0, refused = 0, failed = 0, unfinished = 0, not_sent = 0;
  int64_t late = 0;    // requests sent more than 10 ms late
  double seconds = 0;  // from the first request to the last end
  // Complete requests only.
  int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  // first_token and latency: from sending to the first piece of text, and to the end.
  // between_tokens: from one piece of a text to the next, over all texts. per_token: for each text
  // of several pieces, the time from its first to its last piece, divided by its number of tokens
  // minus one.
  std::optional<Distribution> first_token, between_tokens, per_token, latency;
  std::string error;  // of the first request that failed

  double rate(int64_t count) const {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
  }
};

LoadSummary summarize(const std::vector<RequestTimes>& times);
void print(const LoadSummary& summary);
Json as_json(const LoadSummary& summary);

}  // namespace megatron::bench
