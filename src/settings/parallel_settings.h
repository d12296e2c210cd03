// Settings for dividing a run among its ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/setting_note.h"
#include "parallel/data_parallel.h"
#include "parallel/layer_layout.h"
#include "parallel/mesh.h"
#include "parallel/pipeline.h"
#include "parallel/ranks.h"
#include "settings/parallel_sizes.h"

namespace megatron::settings {

struct ParallelSettings : ParallelSizes {
  // --moe-token-dispatcher-type; flex is refused by check(), with the reason.
  enum class Dispatcher { allgather, alltoall, flex } token_dispatcher = Dispatcher::allgather;
  bool overlap_shared_expert = false;  // --moe-shared-expert-overlap
  bool overlap_experts = false;        // --overlap-moe-expert-parallel-comm
  bool tp_pp_dp_mapping = false;       // --use-tp-pp-dp-mapping
  // Pipeline.
  std::optional<int64_t> layers_per_virtual_stage, virtual_stages, microbatch_group;
  std::optional<int64_t> decoder_first_layers, decoder_last_layers;
  bool account_for_embedding = false, account_for_loss = false;
  std::string layout;                   // --pipeline-model-parallel-layout
  std::optional<std::string> schedule;  // --pipeline-schedule: 1f1b, interleaved, zb-h1, zb-v
  bool overlap_p2p = true;              // --no-overlap-p2p-communication
  // Data.
  bool distributed_optimizer = false, overlap_grad_reduce = false, overlap_param_gather = false;
  std::optional<std::string> sharding_strategy;  // --data-parallel-sharding-strategy
  bool use_megatron_fsdp = false, use_custom_fsdp = false, use_torch_fsdp2 = false;
  int64_t optimizer_instances = 1;
  std::optional<int64_t> bucket_size, num_buckets;  // elements; number for the whole buffer

  void fields(Fields& fields);
  // Number of ranks of one model replica: tp x pp x cp.
  int64_t model_ranks() const;
  // Smallest number of ranks for these sizes: one model replica per optimizer instance, and all
  // experts of a layer in each stage.
  int64_t least_ranks() const;
  // Throws Error naming an invalid size.
  void check_sizes() const;
  // Throws Error naming the values and flags that cannot be combined, and what to change; adds a
  // note for each that is mapped to another or has no effect. ranks: of the run. micro_batches: per
  // step and rank; 0: unknown.
  void check(int ranks, int64_t num_layers, int64_t micro_batches, int64_t seq_length,
             std::vector<SettingNote>& notes) const;

  // Throws Error if context-parallel or sequence-parallel ranks cannot divide a sequence of this
  // length. flag: the flag that gave the length, which the error names.
  void check_length(int64_t length, std::string_view flag) const;

  // True if tokens are sent to other ranks' experts. False if every rank holds all experts, or if
  // tensor-parallel ranks have the same tokens.
  bool expert_tokens_travel() const {
    return expert_ranks() > 1 && (tensor_parallel == 1 || sequence_parallel);
  }

  // Values derived from settings that check() accepts.
  parallel::Layout mesh_layout() const;
  parallel::PipelineShape pipeline(int64_t num_layers) const;
  parallel::LayerPlacement placement() const;
  parallel::Sharding sharding() const;
  parallel::DataParallelOptions data_parallel(int64_t parameters_of_rank) const;
  parallel::PipelineOptions pipeline_options() const;
  parallel::RanksOptions ranks_options(int64_t num_layers) const;
};

}  // namespace megatron::settings
