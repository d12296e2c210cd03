// Continuing prompts that are all known at the start.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "inference/request.h"
#include "models/stage.h"

namespace megatron::inference {

struct Generation {
  std::vector<GeneratedToken> tokens;
  std::vector<double> prompt_log_probabilities;  // of prompt tokens 1.. when logprobs >= 0
  Finish finish = Finish::length;
};

struct GenerateOptions {
  int64_t vocabulary = 0;            // only ids below it are drawn; 0: all that the model knows
  int64_t max_requests = 8;          // that run at once; a result depends on no other, bit for bit
  int64_t max_tokens = 512;          // of a forward pass
  Statistics* statistics = nullptr;  // added to; may be null
};

// Sees each token as it comes. False: the request ends after it, with Finish::stop unless it was an
// end token.
using OnToken = std::function<bool(size_t request, const GeneratedToken&)>;

// Runs an Engine (inference/engine.h) until all requests are done. Throws Error for a request that
// the model cannot take, before any is begun.
std::vector<Generation> generate(const models::Stage& stage, Runtime& runtime,
                                 std::span<const Request> requests, const GenerateOptions& options,
                                 const OnToken& on_token = {});

}  // namespace megatron::inference
