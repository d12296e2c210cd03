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
        "max tokens of prompt and text, in place of the context length that config.json gives; 0: "
        "that length");
  f.add("inference-dynamic-batching-buffer-size-gb", &buffer_gb_,
        "GB for the KV cache; default what the texts that are generated at once can need, at most "
        "half of the memory that is left");
  f.add("inference-dynamic-batching-block-size", &options_.block_size,
        "tokens of a page of the KV cache, a multiple of 32");
  f.add("inference-dynamic-batching-num-cuda-graphs", &options_.cuda_graphs,
        "on a GPU: numbers of texts, at most, that passes of one token a text are padded to and "
        "captured as CUDA graphs; 0: no graphs");
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

void EngineRankFlags::fields(Fields& f) {
  f.begin_group("parallelism");
  sizes_.size_fields(f, settings::ParallelSizes::Of::engine);
}

void EngineRankFlags::check(const comm::Processes& processes) const {
  constexpr int64_t kMax = 1024;
  settings::ParallelSizes sizes = sizes_;
  Fields rows;
  sizes.size_fields(rows, settings::ParallelSizes::Of::engine);
  rows.check();
  const auto [tensor, stages, experts] =
      std::tuple(sizes.tensor_parallel, sizes.pipeline_parallel, sizes.expert_parallel);
  MG_CHECK(
      tensor * stages <= kMax,
      "--tensor-model-parallel-size {} times --pipeline-model-parallel-size {} is {} ranks; at "
      "most {} are possible: lower one of them",
      tensor, stages, tensor * stages, kMax);
  MG_CHECK(
      tensor % experts == 0,
      "--expert-model-parallel-size is {}; it must divide --tensor-model-parallel-size, {}, whose "
      "ranks hold the experts",
      experts, tensor);
  MG_CHECK(!processes.launched() || processes.size() == ranks(),
           "--tensor-model-parallel-size {} times --pipeline-model-parallel-size {} is {}, but {} "
           "were launched; give sizes whose product is {}, or start as many",
           tensor, stages, ranks(), processes.description(), processes.size());
}

}  // namespace megatron::cli
