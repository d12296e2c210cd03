// What a training run is told, under Megatron-LM's flag names. Each group lists its fields; help,
// checks and the saved configuration follow from the list.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "comm/processes.h"
#include "data/batch_schedule.h"
#include "models/gpt/config.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "parallel/mesh.h"
#include "training/batch.h"
#include "training/checkpoint_settings.h"
#include "training/log/run_log.h"
#include "training/tokenizer_settings.h"

namespace megatron::training {

struct BatchSettings {
  std::optional<int64_t> seq_length, micro_batch_size, global_batch_size;
  std::optional<int64_t> train_iters, train_samples;
  std::optional<std::string> step_batch_size_schedule;
  std::vector<std::string> rampup_batch_size;
  bool decrease_batch_size = false;
  bool per_token_loss = true;
  bool bf16 = false;
  bool recompute_activations = false;
  std::optional<std::string> recompute_granularity;

  void fields(Fields& fields);
  DType type() const { return bf16 ? DType::bf16 : DType::f32; }
  LossScope scope() const { return per_token_loss ? LossScope::token : LossScope::micro_batch; }
  bool recompute() const { return recompute_granularity.has_value(); }
  // Fills defaults, the number of iterations and the schedule, and checks; data_parallel: number of
  // ranks. With a schedule the global batch size becomes its last.
  void finalize(int data_parallel);
  int64_t total_samples() const { return schedule.samples_after(*train_iters); }  // consumed

  data::BatchSchedule schedule;  // of finalize()
};

struct OptimizerSettings {
  optim::OptimizerConfig config;
  std::optional<double> lr;
  double min_lr = 0, lr_warmup_init = 0;
  optim::DecayStyle lr_decay_style = optim::DecayStyle::linear;
  std::optional<int64_t> lr_decay_iters, lr_decay_samples;
  int64_t lr_warmup_iters = 0, lr_warmup_samples = 0;
  std::optional<double> lr_warmup_fraction;
  double weight_decay = 0.01;
  std::optional<double> start_weight_decay, end_weight_decay;
  optim::DecayIncrease weight_decay_increase = optim::DecayIncrease::constant;

  void fields(Fields& fields);
  // The two schedules in samples: a number of iterations means the samples that the finalized
  // batch settings consume in them. Throws Error naming the flag.
  optim::LearningRate learning_rate(const BatchSettings& batch) const;
  optim::WeightDecay decay(const BatchSettings& batch) const;
};

struct DataSettings : TokenizerSettings {
  std::vector<std::string> data_path, train_data_path, valid_data_path, test_data_path;
  std::optional<std::string> data_args_path, per_split_data_args_path;
  std::optional<std::string> split, data_cache_path;
  double mid_level_dataset_surplus = 0.005;
  std::optional<int64_t> builder_threads;
  bool mmap_bin_files = true;
  bool allow_ambiguous_pad_tokens = false;
  bool attention_mask_in_dataloader = false;  // accepted; makes no difference
  bool mock_data = false;
  bool reset_position_ids = false, eod_mask_loss = false;
  bool reset_attention_mask = false, inter_document_masking = false;

  void fields(Fields& fields);
};

struct RuntimeSettings {
  std::optional<int64_t> ranks, threads;
  int64_t tensor_parallel = 1, pipeline_parallel = 1, context_parallel = 1, expert_parallel = 1;
  std::string device = "cpu";
  int64_t seed = 1234;

  void fields(Fields& fields);
  // Default: the product of the parallel sizes.
  int rank_count() const {
    return static_cast<int>(ranks.value_or(tensor_parallel * pipeline_parallel * context_parallel));
  }
  parallel::Layout layout() const;
  int threads_per_rank() const;  // default: cores / ranks, at least 1
  Device device_value() const;
  // Of a process that a launcher started: --ranks is their number (throws Error where it is given and is
  // another), and the cores are divided among those on this host.
  void join(const comm::Processes& processes);
  void check() const;
};

struct RunSettings {
  std::optional<int64_t> eval_interval;
  int64_t eval_iters = 100;
  bool full_validation = false, multiple_validation_sets = false;
  std::vector<std::string> validation_set_names;
  std::string dataloader_type = "single";
  bool data_sharding = true;
  std::optional<std::string> model;
  // Text that the model continues now and then, for people to read.
  std::optional<int64_t> sample_interval;
  std::vector<std::string> sample_prompt;
  int64_t sample_tokens = 64;

  void fields(Fields& fields);
};

struct TrainSettings {
  models::GptFlags shape;
  BatchSettings batch;
  OptimizerSettings optimizer;
  DataSettings data;
  RuntimeSettings runtime;
  RunSettings run;
  CheckpointSettings checkpoint;
  LogSettings log;

  Fields fields();
};

}  // namespace megatron::training
