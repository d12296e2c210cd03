#include "server/metrics.h"

#include <fmt/core.h>

#include <algorithm>

namespace megatron::server {
namespace {

constexpr std::array kSeconds = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1,
                                 0.3,    1.0,    3.0,   10.0,  30.0, 100.0};

std::string heading(std::string_view name, std::string_view type, std::string_view help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

// A value of each replica.
std::string by_replica(std::string_view name, std::string_view type, std::string_view help,
                       std::span<const EngineCounts> replicas, int64_t EngineCounts::* value) {
  std::string text = heading(name, type, help);
  for (size_t i = 0; i < replicas.size(); ++i)
    text += fmt::format("{}{{replica=\"{}\"}} {}\n", name, i, replicas[i].*value);
  return text;
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size()) {}

void Histogram::add(double value, int64_t times) {
  const auto bound = std::ranges::lower_bound(bounds_, value);
  if (bound != bounds_.end()) counts_[static_cast<size_t>(bound - bounds_.begin())] += times;
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

std::string Histogram::text(std::string_view name, std::string_view help) const {
  std::string text = heading(name, "histogram", help);
  int64_t up_to = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    up_to += counts_[i];
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bounds_[i], up_to);
  }
  text += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count_,
                      sum_);
  return text;
}

Metrics::Metrics()
    : first_token_(kSeconds), next_token_(kSeconds), step_(kSeconds), between_steps_(kSeconds) {}

void Metrics::answered(std::string_view endpoint, int status) {
  const std::lock_guard lock(mutex_);
  ++answered_[{std::string(endpoint), status}];
}

void Metrics::finished(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  ++finished_[std::string(reason)];
}

void Metrics::first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void Metrics::next_tokens(double seconds, int64_t tokens) {
  const std::lock_guard lock(mutex_);
  next_token_.add(seconds / static_cast<double>(tokens), tokens);
}

void Metrics::step(double seconds) {
  const std::lock_guard lock(mutex_);
  step_.add(seconds);
}

void Metrics::between_steps(double seconds) {
  const std::lock_guard lock(mutex_);
  between_steps_.add(seconds);
}

std::string Metrics::text(std::span<const EngineCounts> replicas) const {
  const std::lock_guard lock(mutex_);
  std::string text =
      heading("megatron_http_requests_total", "counter", "HTTP requests by endpoint and status.");
  for (const auto& [key, count] : answered_)
    text += fmt::format("megatron_http_requests_total{{endpoint=\"{}\",status=\"{}\"}} {}\n",
                        key.first, key.second, count);
  text += heading("megatron_texts_total", "counter", "Generated texts by finish reason.");
  for (const auto& [reason, count] : finished_)
    text += fmt::format("megatron_texts_total{{reason=\"{}\"}} {}\n", reason, count);
  text += by_replica("megatron_prompt_tokens_total", "counter", "Prompt tokens that were computed.",
                     replicas, &EngineCounts::prompt_tokens);
  text += by_replica("megatron_generated_tokens_total", "counter", "Generated tokens.", replicas,
                     &EngineCounts::generated_tokens);
  text += by_replica("megatron_cached_prompt_tokens_total", "counter",
                     "Prompt tokens that were found in the cache.", replicas,
                     &EngineCounts::cached_tokens);
  text += by_replica(
      "megatron_preemptions_total", "counter",
      "Preemptions: times that a text released its part of the cache, to be recomputed later.",
      replicas, &EngineCounts::preemptions);
  text += by_replica("megatron_cuda_graph_launches_total", "counter",
                     "Decode passes that were launched as CUDA graphs.", replicas,
                     &EngineCounts::graph_launches);
  text += by_replica("megatron_cuda_graph_bytes", "gauge",
                     "Memory in bytes used by captured CUDA graphs.", replicas,
                     &EngineCounts::graph_bytes);
  text += by_replica("megatron_cache_blocks", "gauge", "Blocks of the KV cache.", replicas,
                     &EngineCounts::blocks);
  text += by_replica("megatron_cache_bytes", "gauge", "Bytes of the KV cache.", replicas,
                     &EngineCounts::cache_bytes);
  text += by_replica("megatron_cache_blocks_used", "gauge", "Blocks that running texts use.",
                     replicas, &EngineCounts::used_blocks);
  text += by_replica("megatron_cache_blocks_shareable", "gauge",
                     "Cached blocks that a text with the same prefix can share.", replicas,
                     &EngineCounts::shareable_blocks);
  text += by_replica("megatron_requests_running", "gauge", "Texts that are being generated.",
                     replicas, &EngineCounts::running);
  text += by_replica("megatron_requests_waiting", "gauge", "Texts that are waiting in the queue.",
                     replicas, &EngineCounts::waiting);
  text += first_token_.text("megatron_time_to_first_token_seconds",
                            "Time from a text's submission to its first token.");
  text += next_token_.text("megatron_time_between_tokens_seconds",
                           "Time between two tokens of a text.");
  text += step_.text("megatron_engine_step_seconds", "Duration of a forward pass of the engine.");
  text += between_steps_.text("megatron_engine_between_steps_seconds",
                              "Time between forward passes of the engine, while it has work.");
  return text;
}

}  // namespace megatron::server
