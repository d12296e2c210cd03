#include "inference/request.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::inference {

void Request::check(const models::Model& model, int64_t vocabulary) const {
  const auto length = static_cast<int64_t>(prompt.size());
  MG_CHECK(length > 0, "the prompt of request {} is empty; give some text", number);
  MG_CHECK(length <= model->max_position_embeddings(),
           "the prompt of request {} has {} tokens, but the model only {} positions; shorten it",
           number, length, model->max_position_embeddings());
  for (const int32_t id : prompt) {
    MG_CHECK(id >= 0 && id < model->vocab_size(),
             "the prompt of request {} contains token {}, but the model's ids are [0, {}): this is "
             "not the model's tokenizer",
             number, id, model->vocab_size());
  }
  MG_CHECK(max_tokens >= 0, "--max-tokens is {}; it cannot be negative", max_tokens);
  MG_CHECK(logprobs >= -1 && logprobs <= vocabulary,
           "--logprobs is {}, but there are only {} tokens to choose from", logprobs, vocabulary);
  sampling.check();
}

int64_t Request::longest(const models::Model& model) const {
  const auto length = static_cast<int64_t>(prompt.size());
  return length + std::min(max_tokens, model->max_position_embeddings() - length);
}

Statistics& Statistics::operator+=(const Statistics& more) {
  prompt_tokens += more.prompt_tokens;
  generated_tokens += more.generated_tokens;
  decoded_tokens += more.decoded_tokens;
  prefill_seconds += more.prefill_seconds;
  decode_seconds += more.decode_seconds;
  steps += more.steps;
  cached_tokens += more.cached_tokens;
  preemptions += more.preemptions;
  return *this;
}

}  // namespace megatron::inference
