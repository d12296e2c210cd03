#include "bench/serve/summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "base/percentile.h"

namespace megatron::bench {
namespace {

constexpr double kLate = 0.01;

Json as_json(const std::optional<Distribution>& d) {
  if (!d) return {};
  return Json::Object{{"mean", d->mean}, {"p50", d->p50}, {"p90", d->p90}, {"p99", d->p99}};
}

void print(std::string_view name, const std::optional<Distribution>& d) {
  if (d)
    fmt::print("{:<22} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", name, d->mean * 1e3,
               d->p50 * 1e3, d->p90 * 1e3, d->p99 * 1e3);
}

}  // namespace

std::optional<Distribution> distribution(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  return Distribution{.mean = std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size()),
                      .p50 = percentile(values, 0.5),
                      .p90 = percentile(values, 0.9),
                      .p99 = percentile(values, 0.99)};
}

LoadSummary summarize(const std::vector<RequestTimes>& times) {
  LoadSummary s;
  std::vector<double> first, between, per_token, latency;
  std::optional<double> begin;
  double end = 0;
  for (const RequestTimes& r : times) {
    ++s.requests;
    if (!r.started) {
      ++s.not_sent;
      continue;
    }
    begin = std::min(begin.value_or(r.sent), r.sent);
    end = std::max(end, r.ended);
    if (r.due > 0 && r.sent > r.due + kLate) ++s.late;
    if (r.ending == Ending::refused) ++s.refused;
    if (r.ending == Ending::unfinished) ++s.unfinished;
    if (r.ending == Ending::failed) {
      if (s.failed++ == 0) s.error = r.error;
    }
    if (r.ending != Ending::complete) continue;
    ++s.complete;
    s.prompt_tokens += r.prompt_tokens;
    s.output_tokens += r.output_tokens;
    s.cached_tokens += r.cached_tokens;
    latency.push_back(r.ended - r.sent);
    if (r.tokens.empty()) continue;
    first.push_back(r.tokens.front() - r.sent);
    for (size_t t = 1; t < r.tokens.size(); ++t) between.push_back(r.tokens[t] - r.tokens[t - 1]);
    if (r.tokens.size() > 1 && r.output_tokens > 1)
      per_token.push_back((r.tokens.back() - r.tokens.front()) /
                          static_cast<double>(r.output_tokens - 1));
  }
  s.seconds = end - begin.value_or(0);
  s.first_token = distribution(std::move(first));
  s.between_tokens = distribution(std::move(between));
  s.per_token = distribution(std::move(per_token));
  s.latency = distribution(std::move(latency));
  return s;
}

void print(const LoadSummary& s) {
  fmt::print("{} of {} requests complete in {:.2f} s: {:.2f} requests/s\n", s.complete, s.requests,
             s.seconds, s.rate(s.complete));
  fmt::print("refused with status 429: {}; failed: {}; not finished in time: {}; not sent: {}\n",
             s.refused, s.failed, s.unfinished, s.not_sent);
  if (s.late > 0)
    fmt::print("{} were sent late, because as many requests as --concurrency allows were running\n",
               s.late);
  if (!s.error.empty()) fmt::print("the first failure: {}\n", s.error);
  if (s.complete == 0) return;
  fmt::print(
      "prompt tokens/s: {:.1f} ({} of {} tokens were in the server's cache); generated tokens/s: "
      "{:.1f} ({} tokens)\n",
      s.rate(s.prompt_tokens), s.cached_tokens, s.prompt_tokens, s.rate(s.output_tokens),
      s.output_tokens);
  fmt::print("{:<22} {:>10} {:>10} {:>10} {:>10}\n", "milliseconds", "mean", "p50", "p90", "p99");
  print("time to first token", s.first_token);
  print("time between tokens", s.between_tokens);
  print("time per token", s.per_token);
  print("end-to-end latency", s.latency);
}

Json as_json(const LoadSummary& s) {
  return Json::Object{{"requests", s.requests},
                      {"complete", s.complete},
                      {"refused", s.refused},
                      {"failed", s.failed},
                      {"unfinished", s.unfinished},
                      {"not_sent", s.not_sent},
                      {"late", s.late},
                      {"seconds", s.seconds},
                      {"requests_per_second", s.rate(s.complete)},
                      {"prompt_tokens", s.prompt_tokens},
                      {"cached_tokens", s.cached_tokens},
                      {"generated_tokens", s.output_tokens},
                      {"prompt_tokens_per_second", s.rate(s.prompt_tokens)},
                      {"generated_tokens_per_second", s.rate(s.output_tokens)},
                      {"time_to_first_token", as_json(s.first_token)},
                      {"time_between_tokens", as_json(s.between_tokens)},
                      {"time_per_token", as_json(s.per_token)},
                      {"latency", as_json(s.latency)},
                      {"first_failure", s.error.empty() ? Json() : Json(s.error)}};
}

}  // namespace megatron::bench
