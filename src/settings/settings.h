// The settings of a training run, under Megatron-LM's flag names. Each group lists its fields;
// help, checks and the saved configuration follow from the list.
#pragma once

#include "base/fields.h"
#include "models/model.h"
#include "models/model_flags.h"
#include "report/log/run_log.h"
#include "settings/adapter_settings.h"
#include "settings/batch_settings.h"
#include "settings/checkpoint_settings.h"
#include "settings/data_settings.h"
#include "settings/graph_settings.h"
#include "settings/offload_settings.h"
#include "settings/optimizer_settings.h"
#include "settings/parallel_settings.h"
#include "settings/precision_settings.h"
#include "settings/profile_settings.h"
#include "settings/recompute_settings.h"
#include "settings/run_settings.h"
#include "settings/runtime_settings.h"

namespace megatron::settings {

struct TrainSettings {
  std::string preset;  // a name from presets.h, or ""; parsing a command line applies its flags
  models::ModelFlags shape;
  BatchSettings batch;
  PrecisionSettings precision;
  OptimizerSettings optimizer;
  AdapterSettings adapters;
  ParallelSettings parallel;
  RecomputeSettings recompute;
  OffloadSettings offload;
  GraphSettings graphs;
  DataSettings data;
  RuntimeSettings runtime;
  RunSettings run;
  CheckpointSettings checkpoint;
  report::LogSettings log;
  ProfileSettings profile;

  Fields fields();
  // Makes --sft a --task sft, and the model of flags one that fits the task. Throws Error for flags
  // that contradict each other.
  void settle_task() {
    data.settle_sft();
    shape.encoder = data.masks();
    shape.encoder_decoder = data.reads_two_texts();
  }
  // If the number of ranks is not given, it is the smallest that the parallel sizes need.
  void settle_ranks() {
    parallel.check_sizes();
    if (!runtime.ranks) runtime.ranks = parallel.least_ranks();
  }
  // Ranks that see different samples.
  int data_parallel() const {
    return runtime.rank_count() / static_cast<int>(parallel.model_ranks());
  }
  // Sequences of an evaluation's global batch and micro-batch.
  int64_t eval_batch() const { return run.eval_batch(batch); }
  int64_t eval_micro_batch() const { return run.eval_micro_batch(batch); }
};

}  // namespace megatron::settings
