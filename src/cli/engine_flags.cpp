#include "cli/engine_flags.h"

#include "base/error.h"

namespace megatron::cli {

void EngineFlags::fields(Fields& f) {
  f.begin_group("engine");
  f.add("inference-dynamic-batching-max-requests", &options_.max_requests,
        "texts that are generated at once; others wait");
  f.add("inference-dynamic-batching-max-tokens", &options_.max_tokens,
        "tokens of a forward pass: the next ones of texts, and pieces of prompts");
  f.add("inference-max-seq-length", &options_.max_length,
        "max tokens of prompt and text; 0: the model's positions");
  f.add("inference-dynamic-batching-buffer-size-gb", &buffer_gb_,
        "GB for the KV cache; default what the texts that are generated at once can need, at most "
        "half of the memory that is left");
  f.add("inference-dynamic-batching-block-size", &options_.block_size,
        "tokens of a page of the KV cache, a multiple of 32");
  f.add_switch("inference-dynamic-batching-prefix-caching", &options_.prefix_caching, true,
               "share the pages of prompts that begin alike; the default");
  f.add_switch("no-inference-dynamic-batching-prefix-caching", &options_.prefix_caching, false,
               "read every prompt anew");
}

void EngineFlags::check() {
  if (buffer_gb_) {
    MG_CHECK(*buffer_gb_ > 0 && *buffer_gb_ < 1e9,
             "--inference-dynamic-batching-buffer-size-gb is {}; it must be positive", *buffer_gb_);
    options_.cache_bytes = static_cast<int64_t>(*buffer_gb_ * 1e9);
  }
  options_.check();
}

}  // namespace megatron::cli
