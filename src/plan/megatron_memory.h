// Memory that Megatron-LM expects a run to need, by its own formulas: of the rank that holds the
// most, in bytes, with bf16 parameters and fp32 gradients, main parameters and Adam moments. The
// memory that a run takes here is another figure: the plan's, which is measured (plan.h); this one
// is for comparison with Megatron-LM's log.
//
//   weights and optimizer   18 per parameter; with the distributed optimizer
//                           6 + 12 / data parallel size
//   activations             of a layer and micro-batch of s x b tokens: with sequence parallelism
//                           and selective recompute s b h (18 + 4 f / h) / tp, else
//                           s b h (10 + 24 / tp) and 5% on the sum; embedding, logits and the
//                           micro-batches in flight of a pipeline besides
#pragma once

#include <string>

#include "plan/megatron_shape.h"
#include "plan/plan.h"

namespace megatron::plan {

// Megatron-LM's layout of the run, under its arguments' names.
struct MegatronLayout {
  int64_t seq_length = 0, micro_batch_size = 0;
  std::optional<int64_t> num_microbatches;
  int64_t tensor_model_parallel_size = 1, pipeline_model_parallel_size = 1, data_parallel_size = 1,
          world_size = 1;
  std::optional<int64_t> virtual_pipeline_model_parallel_size;
  int64_t expert_tensor_parallel_size = 1, expert_model_parallel_size = 1;
  bool use_distributed_optimizer = false, sequence_parallel = false, selective_recompute = false;

  // True if its report shows the formula of activations with sequence parallelism.
  bool shows_sequence_parallel() const { return sequence_parallel && selective_recompute; }
};

// Number of parameters by Megatron-LM's count.
struct MegatronParameters {
  int64_t block = 0, active_block = 0;  // active: including only the experts that a token uses
  int64_t prediction = 0, embedding = 0;
  double most_loaded = 0, other = 0;  // parameters per shard
  int64_t total() const { return block + prediction + embedding; }
  int64_t active() const { return active_block + prediction + embedding; }
};

struct MegatronMemory {
  MegatronParameters parameters;
  double weights_and_optimizer = 0;
  double activations_sequence_parallel = 0, activations = 0;
  double layer_sequence_parallel = 0, layer = 0;  // per layer and micro-batch
  // Micro-batches whose activations are held, relative to the number of stages.
  double in_flight = 0;
};

// Throws Error for experts without --moe-ffn-hidden-size, which Megatron-LM cannot count either.
MegatronMemory megatron_memory(const MegatronShape& shape, const MegatronLayout& layout);

// Values of Megatron-LM's report for a run of this program.
MegatronEstimate megatron_estimate(const models::ModelFacts& model, int64_t padded_vocabulary,
                                   const MegatronLayout& layout);

}  // namespace megatron::plan
