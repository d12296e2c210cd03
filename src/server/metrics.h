// Metrics of a server for Prometheus (text format 0.0.4).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::server {

// A Prometheus histogram: counts the values up to each bound.
class Histogram {
 public:
  // bounds: in ascending order.
  explicit Histogram(std::span<const double> bounds);
  void add(double value, int64_t times = 1);
  // name: without _bucket, _sum and _count.
  std::string text(std::string_view name, std::string_view help) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;  // values per bucket, up to each bound
  int64_t count_ = 0;
  double sum_ = 0;
};

// The current load of an engine, and its totals so far.
struct EngineCounts {
  int64_t running = 0, waiting = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t cached_tokens = 0;  // prompt tokens that were found in the cache
  int64_t preemptions = 0;
  int64_t graph_launches = 0, graph_bytes = 0;
  int64_t blocks = 0, used_blocks = 0, shareable_blocks = 0;  // of the KV cache
  int64_t cache_bytes = 0;
};

// All members may be called by many threads at once.
class Metrics {
 public:
  Metrics();

  // Counts an HTTP request by endpoint (a path of the API, or "other") and status.
  void answered(std::string_view endpoint, int status);
  // Counts a text by how it ended: "length", "stop", "cancelled", "deadline", "error", ....
  void finished(std::string_view reason);
  void first_token(double seconds);                  // since its request was submitted
  void next_tokens(double seconds, int64_t tokens);  // since the previous token
  void step(double seconds);                         // duration of an engine pass
  void between_steps(double seconds);                // time between passes while there was work

  // replicas: the counts of each replica's engine.
  std::string text(std::span<const EngineCounts> replicas) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> answered_;
  std::map<std::string, int64_t> finished_;
  Histogram first_token_, next_token_, step_, between_steps_;
};

}  // namespace megatron::server
