#include "inference/generate.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::inference {
namespace {

// Adds a step's update to its request's result. Returns true if the caller ends the request here.
bool take(RequestUpdate& update, size_t request, Generation& result, const OnToken& on_token) {
  std::ranges::copy(update.prompt_log_probabilities,
                    std::back_inserter(result.prompt_log_probabilities));
  std::ranges::move(update.prompt_alternatives, std::back_inserter(result.prompt_alternatives));
  std::ranges::copy(update.expert_choices, std::back_inserter(result.expert_choices));
  for (GeneratedToken& token : update.tokens) {
    result.tokens.push_back(std::move(token));
    if (on_token && !on_token(request, result.tokens.back())) return true;
  }
  return false;
}

}  // namespace

std::vector<Generation> generate(const models::Stage& stage, Runtime& runtime,
                                 std::span<const Request> requests, const EngineOptions& options,
                                 const OnToken& on_token, Statistics* statistics,
                                 const EngineRanks& ranks, const OnDone& on_done) {
  EngineOptions of_engine = options;
  of_engine.check();
  const models::Model& model = stage.model();
  for (const Request& request : requests) {
    request.check(model, of_engine.drawn_vocabulary(model));
    if (options.max_length == 0)
      of_engine.max_length = std::max(of_engine.max_length, request.longest_cached(model));
  }
  if (requests.empty()) return {};
  int64_t width = 0;
  for (const Request& request : requests) width += request.width();
  of_engine.max_requests = std::min(options.max_requests, width);
  Engine engine(stage, runtime, of_engine, ranks);
  std::vector<Generation> results(requests.size());
  for (const Request& request : requests) engine.submit(request);
  while (!engine.idle()) {
    for (RequestUpdate& update : engine.step()) {
      const size_t request = update.id - 1;
      Generation& result = results[request];
      const bool stopped = take(update, request, result, on_token);
      if (update.finish == Finish::failed) throw Error(update.error);
      if (update.finish) result.finish = *update.finish;
      if (!update.beams.empty()) result.beams = std::move(update.beams);
      if (update.finish == Finish::scored) {
        result.scores = std::move(update.scores);
        result.embedding = std::move(update.embedding);
      }
      if (stopped) {
        engine.cancel(update.id);
        if (result.finish != Finish::end_token) result.finish = Finish::stop;
      }
      if (on_done && (stopped || update.finish)) on_done(request, result);
    }
  }
  if (statistics != nullptr) *statistics += engine.statistics();
  return results;
}

}  // namespace megatron::inference
