#include "cli/engine_flags.h"

#include "base/error.h"

namespace megatron::cli {

void EngineFlags::fields(Fields& f) {
  f.begin_group("engine");
  f.add("inference-dynamic-batching-max-requests", &options_.max_requests,
        "max sequences generated at once; others wait");
  f.add("inference-dynamic-batching-max-tokens", &options_.max_tokens,
        "max tokens per forward pass, counting the next token of each sequence and chunks of "
        "prompts");
  f.add("inference-max-seq-length", &options_.max_length,
        "max tokens of prompt and output, instead of the context length in config.json; 0: that "
        "length");
  f.add("inference-dynamic-batching-buffer-size-gb", &buffer_gb_,
        "size of the KV cache in GB; default what the sequences generated at once can need, but at "
        "most half of the free memory");
  f.add("inference-dynamic-batching-block-size", &options_.block_size,
        "tokens per page of the KV cache, a multiple of 32");
  f.add("inference-dynamic-batching-num-cuda-graphs", &options_.cuda_graphs,
        "on a GPU: max number of batch sizes for which decode passes are captured as CUDA graphs; "
        "other batches are padded to the next of these sizes; 0: no graphs");
  f.add_switch("inference-dynamic-batching-prefix-caching", &options_.prefix_caching, true,
               "share KV-cache pages between prompts that begin with the same tokens; the default");
  f.add_switch("no-inference-dynamic-batching-prefix-caching", &options_.prefix_caching, false,
               "compute every prompt in full, without sharing KV-cache pages");
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
  MG_CHECK(
      !processes.launched() || processes.size() == ranks(),
      "--tensor-model-parallel-size {} times --pipeline-model-parallel-size {} is {}, but {} were "
      "launched; give sizes whose product is {}, or launch as many ranks as the sizes need",
      tensor, stages, ranks(), processes.description(), processes.size());
}

}  // namespace megatron::cli
