#include "inference/engine_options.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/attention.h"

namespace megatron::inference {

// The sizes of a pass are products of these numbers and must fit in 64 bits.
constexpr int64_t kMaxRequests = int64_t{1} << 40, kMaxTokens = int64_t{1} << 28;

void EngineOptions::latent_fields(Fields& f) {
  latent_decode = LatentDecode::absorbed;
  f.add_enum<LatentDecode>(
      "mla-decode", &latent_decode,
      {{"absorbed", LatentDecode::absorbed}, {"plain", LatentDecode::plain}},
      "how multi-latent attention reads its cache of latent vectors: absorbed multiplies queries "
      "and results by its matrices, plain computes all keys and values again, with the same bits "
      "as in training");
}

void EngineOptions::check() const {
  MG_CHECK(max_requests > 0 && max_requests <= kMaxRequests,
           "--inference-dynamic-batching-max-requests is {}; it must lie in [1, {}]", max_requests,
           kMaxRequests);
  MG_CHECK(max_tokens > 0 && max_tokens <= kMaxTokens,
           "--inference-dynamic-batching-max-tokens is {}; it must lie in [1, {}]", max_tokens,
           kMaxTokens);
  MG_CHECK(vocabulary >= 0, "the vocabulary to sample from has {} ids; give 0 for the model's own",
           vocabulary);
  MG_CHECK(max_length >= 0,
           "--inference-max-seq-length is {}; give 0 for the context length of the model",
           max_length);
  MG_CHECK(block_size > 0 && block_size % kernels::kPageKeys == 0 && block_size <= kMaxTokens,
           "--inference-dynamic-batching-block-size is {}; it must be a multiple of {}, at most {}",
           block_size, kernels::kPageKeys, kMaxTokens);
  MG_CHECK(cuda_graphs >= 0,
           "--inference-dynamic-batching-num-cuda-graphs is {}; give 0 for none, or a positive "
           "number",
           cuda_graphs);
  MG_CHECK(cache_bytes >= 0,
           "the KV cache size is {} bytes; give a positive number, or 0 for the default",
           cache_bytes);
}

int64_t EngineOptions::drawn_vocabulary(const models::Model& model) const {
  return vocabulary > 0 ? std::min(vocabulary, model->vocab_size()) : model->vocab_size();
}

int64_t EngineOptions::longest_text(const models::Model& model) const {
  check();
  const int64_t positions = model->context_length();
  return max_length > 0 ? std::min(max_length, positions) : positions;
}

}  // namespace megatron::inference
