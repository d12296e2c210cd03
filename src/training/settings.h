// What a training run is told, under Megatron-LM's flag names. Each group lists its fields; help,
// checks and the saved configuration follow from the list.
#pragma once

#include "base/fields.h"
#include "models/gpt/config.h"
#include "training/batch_settings.h"
#include "training/checkpoint_settings.h"
#include "training/data_settings.h"
#include "training/log/run_log.h"
#include "training/optimizer_settings.h"
#include "training/precision_settings.h"
#include "training/profile_settings.h"
#include "training/run_settings.h"
#include "training/runtime_settings.h"

namespace megatron::training {

struct TrainSettings {
  models::GptFlags shape;
  BatchSettings batch;
  PrecisionSettings precision;
  OptimizerSettings optimizer;
  DataSettings data;
  RuntimeSettings runtime;
  RunSettings run;
  CheckpointSettings checkpoint;
  LogSettings log;
  ProfileSettings profile;

  Fields fields();
  // Of an evaluation: sequences of a global batch, and of a micro-batch.
  int64_t eval_batch() const { return run.eval_batch(batch); }
  int64_t eval_micro_batch() const { return run.eval_micro_batch(batch); }
};

}  // namespace megatron::training
