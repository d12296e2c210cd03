// Results of a forward pass, computed on the sampling rank and shared with all ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "inference/engine_ranks.h"
#include "inference/request.h"

namespace megatron::inference {

// The next token drawn for a sequence, or the reason why none was.
struct DrawnToken {
  GeneratedToken token;
  std::optional<Finish> finish;  // set if the token is the last
  std::string error;
  bool by_grammar = false;  // whether the grammar caused the error
};

struct PassResults {
  // Losses of the tokens [T], or of an encoder's masked tokens; empty if none are requested.
  std::vector<double> losses;
  // For the tokens of prompts that request them, or for an encoder's masked tokens.
  std::vector<PromptAlternatives> prompt_alternatives;
  std::vector<DrawnToken> drawn;           // per sequence that is ready; empty if none draws
  std::vector<std::vector<float>> scores;  // per sequence that is ready; empty if none wants them
  std::vector<std::vector<float>> embeddings;  // per row of an encoder's pass; or empty
  // Per row of an encoder's pass, why there is no embedding; "": there is one. Or empty.
  std::vector<std::string> embedding_errors;
  // [T, layers with experts, experts per token] (RequestUpdate); empty if none are requested.
  std::vector<int32_t> expert_choices;
};

// Collective over ranks.all: broadcasts the sampling rank's results.
void share(PassResults& results, const EngineRanks& ranks, Stream& stream);

}  // namespace megatron::inference
