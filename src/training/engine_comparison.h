// `megatron eval --against-engine`: whether the inference engine computes the log-probabilities
// with which a model is trained.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "corpus/documents.h"
#include "inference/engine_options.h"
#include "models/stage.h"

namespace megatron::training {

struct EngineComparison {
  int64_t texts = 0, tokens = 0;
  // Tokens whose log-probabilities differ in any bit, and the largest difference.
  struct Way {
    int64_t different = 0;
    double largest = 0;
  };
  Way at_once, by_token;  // prompts in passes of --max-tokens tokens, and of one token each

  bool equal() const { return at_once.different == 0 && by_token.different == 0; }
  Json json() const;
  std::string text() const;
};

// Compares the values that an objective reads (parallel/token_log_probabilities.h), from forward
// passes of training without dropout, with the engine's, of the first tokens of each document, as
// many as the context length.
EngineComparison compare_with_engine(const models::Stage& stage, Runtime& runtime,
                                     const corpus::Documents& documents,
                                     const inference::EngineOptions& options);

}  // namespace megatron::training
