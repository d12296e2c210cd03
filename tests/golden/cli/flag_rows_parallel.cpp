#include "golden/cli/flag_effects.h"

namespace megatron::testing {
namespace {

std::vector<FlagRow> axis_flags() {
  const std::string two = "--ranks 2 ", four = "--ranks 4 --global-batch-size 4 ";
  const std::string experts = two + "--num-experts 4 --expert-model-parallel-size 2 ";
  // The first stage waits for the loss over a large vocabulary. That takes far longer than the
  // rows' limits and than three polls of the watchdog, 10 ms apart.
  const std::string waiting =
      two + "--pipeline-model-parallel-size 2 --seq-length 1024 --vocab-size 30000";
  return {
      {"tensor-model-parallel-size", "memory", "--tensor-model-parallel-size 2", two},
      {"sequence-parallel", "memory", "--sequence-parallel",
       two + "--tensor-model-parallel-size 2"},
      {"context-parallel-size", "memory", "--context-parallel-size 2", two},
      {"cp-comm-type", "trace", "--cp-comm-type all_gather",
       two + "--context-parallel-size 2 --profile --profile-step-start 0 --profile-step-end 1 "
             "--profile-dir {w}/trace",
       "--cp-comm-type p2p"},
      {"hierarchical-context-parallel-sizes", "end", "--hierarchical-context-parallel-sizes 2 2",
       "--ranks 4 --context-parallel-size 4 --cp-comm-type a2a+p2p"},
      {"pipeline-model-parallel-size", "memory", "--pipeline-model-parallel-size 2", two},
      {"expert-model-parallel-size", "memory", "--expert-model-parallel-size 2",
       two + "--num-experts 4"},
      {"expert-tensor-parallel-size", "memory", "--expert-tensor-parallel-size 1",
       two + "--num-experts 4 --tensor-model-parallel-size 2 --sequence-parallel"},
      {"moe-token-dispatcher-type", "trace", "--moe-token-dispatcher-type alltoall",
       experts + "--profile --profile-step-start 0 --profile-step-end 1 --profile-dir {w}/trace",
       "--moe-token-dispatcher-type allgather"},
      {"moe-shared-expert-overlap", "threads", "--moe-shared-expert-overlap",
       experts + "--moe-shared-expert-intermediate-size 8"},
      {"overlap-moe-expert-parallel-comm", "memory", "--overlap-moe-expert-parallel-comm",
       experts + "--global-batch-size 4"},
      {"distributed-backend", "gpu", "--distributed-backend nccl"},
      {"distributed-timeout-minutes", "error", "--distributed-timeout-minutes 0.000001", waiting,
       "", "", "--distributed-timeout-seconds-after-init 600 " + waiting},
      {"distributed-timeout-seconds-after-init", "error",
       "--distributed-timeout-seconds-after-init 0.00006", waiting,
       "--distributed-timeout-seconds-after-init 600"},
      {"distributed-notice-seconds", "threads", "--distributed-notice-seconds 0",
       "--ranks 2 --distributed-timeout-minutes 0"},
      // Rank 1 belongs to the first stage or to the last, depending on the mapping.
      {"use-tp-pp-dp-mapping", "trace", "--use-tp-pp-dp-mapping",
       four + "--pipeline-model-parallel-size 2 --profile --profile-step-start 0 "
              "--profile-step-end 1 --profile-dir {w}/trace --profile-ranks 1"},
  };
}

std::vector<FlagRow> pipeline_flags() {
  const std::string stages =
      "--ranks 2 --pipeline-model-parallel-size 2 --num-layers 4 --global-batch-size 4 ";
  return {
      {"num-layers-per-virtual-pipeline-stage", "memory",
       "--num-layers-per-virtual-pipeline-stage 1", stages,
       "--num-layers-per-virtual-pipeline-stage 2"},
      {"num-virtual-stages-per-pipeline-rank", "memory", "--num-virtual-stages-per-pipeline-rank 2",
       stages, "--num-virtual-stages-per-pipeline-rank 1"},
      {"microbatch-group-size-per-virtual-pipeline-stage", "memory",
       "--microbatch-group-size-per-virtual-pipeline-stage 4",
       stages + "--num-virtual-stages-per-pipeline-rank 2",
       "--microbatch-group-size-per-virtual-pipeline-stage 2"},
      {"decoder-first-pipeline-num-layers", "memory", "--decoder-first-pipeline-num-layers 1",
       stages, "--decoder-first-pipeline-num-layers 2"},
      {"decoder-last-pipeline-num-layers", "memory", "--decoder-last-pipeline-num-layers 1", stages,
       "--decoder-last-pipeline-num-layers 2"},
      // Three layers and the embedding make two for each stage.
      {"account-for-embedding-in-pipeline-split", "memory",
       "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split=false",
       stages + "--num-layers 3 --account-for-loss-in-pipeline-split"},
      {"account-for-loss-in-pipeline-split", "memory",
       "--account-for-loss-in-pipeline-split --account-for-embedding-in-pipeline-split=false",
       stages + "--num-layers 3 --account-for-embedding-in-pipeline-split"},
      {"pipeline-model-parallel-layout", "memory", "--pipeline-model-parallel-layout Et|tttL",
       stages, "--pipeline-model-parallel-layout Ett|ttL"},
      {"pipeline-schedule", "memory", "--pipeline-schedule zb-v", stages,
       "--pipeline-schedule 1f1b"},
      {"no-overlap-p2p-communication", "memory", "--no-overlap-p2p-communication", stages},
  };
}

std::vector<FlagRow> data_parallel_flags() {
  const std::string two = "--ranks 2 ", four = "--ranks 4 --global-batch-size 4 ";
  const std::string traced =
      two + "--profile --profile-step-start 0 --profile-step-end 1 --profile-dir {w}/trace ";
  return {
      {"use-distributed-optimizer", "memory", "--use-distributed-optimizer", two},
      {"data-parallel-sharding-strategy", "memory",
       "--data-parallel-sharding-strategy optim_grads_params", two,
       "--data-parallel-sharding-strategy no_shard"},
      {"num-distributed-optimizer-instances", "memory", "--num-distributed-optimizer-instances 2",
       four + "--use-distributed-optimizer"},
      {"use-megatron-fsdp", "memory", "--use-megatron-fsdp", two},
      {"use-custom-fsdp", "memory", "--use-custom-fsdp", two},
      {"use-torch-fsdp2", "memory", "--use-torch-fsdp2", two},
      {"overlap-grad-reduce", "trace", "--overlap-grad-reduce", traced + "--ddp-bucket-size 500"},
      {"ddp-bucket-size", "trace", "--ddp-bucket-size 500", traced + "--overlap-grad-reduce",
       "--ddp-bucket-size 40000000"},
      {"ddp-num-buckets", "trace", "--ddp-num-buckets 4", traced + "--overlap-grad-reduce",
       "--ddp-num-buckets 1"},
      {"overlap-param-gather", "memory", "--overlap-param-gather",
       two + "--data-parallel-sharding-strategy optim_grads_params --overlap-grad-reduce"},
      {"fp8-param-gather", "memory", "--fp8-param-gather",
       two + "--use-distributed-optimizer --fp8-format e4m3", "", "",
       two + "--use-distributed-optimizer"},
      {"fp4-param-gather", "memory", "--fp4-param-gather",
       two + "--use-distributed-optimizer --fp4-format e2m1", "", "",
       two + "--use-distributed-optimizer"},
  };
}

std::vector<FlagRow> memory_flags() {
  const std::string full = "--num-layers 4 --recompute-granularity full ";
  return {
      {"recompute-method", "memory", "--recompute-method block", full + "--recompute-num-layers 2",
       "--recompute-method uniform"},
      {"recompute-num-layers", "memory", "--recompute-num-layers 2", full,
       "--recompute-num-layers 1"},
      {"recompute-modules", "memory", "--recompute-modules mlp",
       "--recompute-granularity selective", "--recompute-modules core_attn"},
      {"mlp-chunks-for-training", "memory", "--mlp-chunks-for-training 4"},
      {"distribute-saved-activations", "memory", "--distribute-saved-activations",
       full + "--num-layers 8 --ranks 2 --tensor-model-parallel-size 2"},
      {"cpu-offloading-num-layers", "memory", "--cpu-offloading-num-layers 1"},
      {"instruction-set", "note", "--instruction-set avx2"},
      {"allow-nondeterministic", "gpu", "--allow-nondeterministic"},
      {"attention-workspace-mib", "note", "--attention-workspace-mib 64"},
      {"gemm-tuning", "note", "--gemm-tuning on"},
      {"cuda-graph-impl", "gpu", "--cuda-graph-impl local"},
      {"cuda-graph-warmup-steps", "gpu", "--cuda-graph-warmup-steps 2", "--cuda-graph-impl local"},
      {"optimizer-cpu-offload", "memory", "--optimizer-cpu-offload"},
      {"optimizer-offload-fraction", "memory", "--optimizer-offload-fraction 0.5",
       "--optimizer-cpu-offload", "--optimizer-offload-fraction 1"},
  };
}

}  // namespace

std::vector<FlagRow> parallel_flags() {
  std::vector<FlagRow> all;
  for (auto& rows : {axis_flags(), pipeline_flags(), data_parallel_flags(), memory_flags()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

}  // namespace megatron::testing
