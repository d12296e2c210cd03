#include "training/sample_text.h"

#include "inference/generate.h"

namespace megatron::training {

std::string sample_text(const models::Stage& model, Runtime& runtime,
                        const tokenizers::Tokenizer& tokenizer, const std::string& prompt,
                        int64_t tokens, const std::vector<int32_t>& end_tokens) {
  inference::Request request{.prompt = tokenizer.encode(prompt, true), .max_tokens = tokens};
  request.sampling.temperature = 0.8;
  const bool has_data = runtime.device().has_data();
  if (has_data) request.end_tokens = end_tokens;
  // The separate memory that graphs need is not part of a run's plan.
  const inference::EngineOptions options{.vocabulary = tokenizer.vocabulary_size(),
                                         .cuda_graphs = 0};
  const auto generations = inference::generate(model, runtime, std::span(&request, 1), options);
  if (!has_data) return {};
  std::vector<int32_t> ids;
  for (const inference::GeneratedToken& token : generations[0].tokens)
    ids.push_back(token.draw.token);
  return tokenizer.decode(ids);
}

}  // namespace megatron::training
