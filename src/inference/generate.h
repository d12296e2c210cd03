// Continues prompts that are all known at the start.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "inference/engine.h"
#include "inference/request.h"
#include "models/stage.h"

namespace megatron::inference {

struct Generation {
  std::vector<GeneratedToken> tokens;  // with beams, of the best text
  // For prompt tokens 1.. if logprobs >= 0, or an encoder's masked tokens.
  std::vector<double> prompt_log_probabilities;
  std::vector<PromptAlternatives> prompt_alternatives;  // of the same tokens, if requested
  std::vector<float> scores, embedding;                 // as in RequestUpdate
  // As in RequestUpdate, for all tokens but the last, if they are requested.
  std::vector<int32_t> expert_choices;
  std::vector<BeamResult> beams;  // as in RequestUpdate
  Finish finish = Finish::length;
};

// Called with each token as it is generated. Returning false ends the request after it, with
// Finish::stop unless it was an end token.
using OnToken = std::function<bool(size_t request, const GeneratedToken&)>;

// Called with the result of each completed request, in any order.
using OnDone = std::function<void(size_t request, const Generation&)>;

// Runs an Engine until all requests are done; max_length 0: as long as the longest request needs.
// Throws Error for a request that the model cannot take, before any request starts. statistics:
// added to; may be null. ranks: as for Engine; ranks that are not led must have the same requests,
// and their on_token must return the same results.
std::vector<Generation> generate(const models::Stage& stage, Runtime& runtime,
                                 std::span<const Request> requests, const EngineOptions& options,
                                 const OnToken& on_token = {}, Statistics* statistics = nullptr,
                                 const EngineRanks& ranks = {}, const OnDone& on_done = {});

}  // namespace megatron::inference
