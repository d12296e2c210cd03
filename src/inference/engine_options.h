// Sizes of an inference engine.
#pragma once

#include <cstdint>

#include "base/fields.h"
#include "models/model.h"

namespace megatron::inference {

// How multi-latent attention reads its cache (nn/latent_state.h): plain gives the bits of a forward
// pass over the whole text, absorbed is faster.
enum class LatentDecode { plain, absorbed };

struct EngineOptions {
  static constexpr int64_t kCudaGraphs = 16;

  int64_t vocabulary = 0;    // only ids below it are drawn; 0: all of the model's
  int64_t max_requests = 8;  // requests that run at once; others wait
  int64_t max_tokens = 512;  // per forward pass
  int64_t max_length = 0;    // tokens of prompt and text per request; 0: the context length
  int64_t block_size = 64;   // tokens per page of the KV cache; a multiple of 32
  int64_t cache_bytes =
      0;  // bytes of the KV cache on each rank; 0: max_requests texts of max_length tokens
  bool prefix_caching = true;
  LatentDecode latent_decode = LatentDecode::plain;
  // On CUDA, the maximum number of row counts to which decode passes are padded and for which they
  // are captured as graphs (inference/decode_passes.h). 0: passes are padded the same way, but
  // launched kernel by kernel.
  int64_t cuda_graphs = kCudaGraphs;
  int64_t engines = 1;  // engines in this process, which share the remaining memory

  // For commands that generate text: --mla-decode, by default absorbed.
  void latent_fields(Fields& f);
  void check() const;  // throws Error naming the flag
  int64_t drawn_vocabulary(const models::Model& model) const;
  int64_t longest_text(const models::Model& model) const;  // throws like check()
};

}  // namespace megatron::inference
