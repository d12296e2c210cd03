// Continuing a prompt, one full forward pass a token.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "models/gpt/model.h"

namespace megatron::training {

struct SamplingOptions {
  double temperature = 1;  // 0: the most likely token
  int64_t top_k = 0;       // 0: all tokens
  int64_t vocabulary = 0;  // only ids below it are drawn; 0: all that the model knows
  uint64_t seed = 1234;

  void check() const;  // throws Error naming the flag
};

// Logits of the position after `tokens` (the last positions that fit the model), in f32.
std::vector<float> next_logits(const models::GptModel& model, Runtime& runtime,
                               const std::vector<int32_t>& tokens);

// The token drawn at a position: it depends on the logits, the seed and the position alone.
int32_t sample(const std::vector<float>& logits, const SamplingOptions& options, int64_t position);

// Appends up to max_tokens tokens to `tokens`; stops after `end`. on_token sees each as it comes.
void generate(const models::GptModel& model, Runtime& runtime, std::vector<int32_t>& tokens,
              int64_t max_tokens, const SamplingOptions& options, std::optional<int32_t> end,
              const std::function<void(int32_t)>& on_token);

}  // namespace megatron::training
