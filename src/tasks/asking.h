// Asks a model the questions of examples and collects its answers, through an inference engine.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "inference/engine.h"
#include "models/stage.h"
#include "tasks/context.h"
#include "tokenizers/tokenizer.h"

namespace megatron::tasks {

// Either continuations to score, or a prompt to continue.
struct Question {
  std::string place;  // position for errors
  std::vector<TokenPair> continuations;
  bool wants_greedy = false;  // for a single continuation: whether it is the model's greedy choice

  std::vector<int32_t> prompt;
  int64_t max_tokens = 0;
  std::vector<std::string> until;

  size_t requests() const { return continuations.empty() ? 1 : continuations.size(); }
};

struct Answer {
  std::vector<double> log_likelihoods;  // for each continuation: sum over its tokens
  bool is_greedy = true;
  std::string text;  // generated text before any of `until`, without special tokens
};

struct AskOptions {
  inference::EngineOptions engine;
  std::vector<int32_t> end_tokens;  // tokens that end a text
};

// Asks all questions. The first request of a question goes before its others, which find their
// common prefix in the cache. answered: called for each question when it is answered, in any order.
// progress: called for each request. Answers do not depend on the order or the batch. Throws Error
// naming the place of a question whose likelihood is not a number.
void ask(const models::Stage& stage, Runtime& runtime, const tokenizers::Tokenizer& tokenizer,
         const AskOptions& options, std::span<const Question> questions,
         const std::function<void(size_t question, Answer)>& answered,
         const std::function<void()>& progress);

}  // namespace megatron::tasks
