// Settings for saving, stopping and starting a run.
#pragma once

#include <optional>
#include <string>

#include "base/fields.h"
#include "checkpoint/model_directory.h"

namespace megatron::settings {

struct CheckpointSettings {
  std::optional<std::string> save, load;
  std::optional<int64_t> save_interval, save_retain_interval, save_keep;
  bool async_save = false;
  bool save_optimizer = true;
  bool exit_on_save_failure = false;
  std::optional<int64_t> ckpt_step;
  bool exit_on_missing_checkpoint = false;
  bool finetune = false;
  std::optional<std::string> pretrained_checkpoint;
  // The flags that gave `pretrained_checkpoint` and `load`, as errors name them. Commands that
  // fine-tune take --model for the former, which gives a new run's `load`.
  std::string_view pretrained_flag = "--pretrained-checkpoint", load_flag = "--load";
  // Makes experts from the feed-forward blocks of --model.
  bool upcycle = false;
  int64_t upcycling_granularity = 1;
  checkpoint::ReadingOptions reading;
  bool use_checkpoint_args = false;
  bool load_optimizer = true, load_rng = true;
  bool override_scheduler = false, use_checkpoint_scheduler = false;
  std::optional<int64_t> exit_interval;
  std::optional<double> exit_duration_in_mins;
  bool exit_signal_handler = false;

  void fields(Fields& fields);
  void check() const;  // throws Error naming the flags
  // True if the checkpoint of `iteration` is removed once `newest` is saved. The last --save-keep
  // checkpoints and multiples of --save-retain-interval are never removed.
  bool removes_old() const { return save_keep || save_retain_interval; }
};

}  // namespace megatron::settings
