// What a training run is told, under Megatron-LM's flag names. Each group lists its fields; help,
// checks and the saved configuration follow from the list.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "models/gpt/config.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "parallel/mesh.h"
#include "training/batch.h"

namespace megatron::training {

struct BatchSettings {
  std::optional<int64_t> seq_length, micro_batch_size, global_batch_size, train_iters;
  bool per_token_loss = true;
  bool bf16 = false;
  bool recompute_activations = false;
  std::optional<std::string> recompute_granularity;

  void fields(Fields& fields);
  DType type() const { return bf16 ? DType::bf16 : DType::f32; }
  LossScope scope() const { return per_token_loss ? LossScope::token : LossScope::micro_batch; }
  bool recompute() const { return recompute_granularity.has_value(); }
  // Fills defaults and checks; data_parallel: number of ranks.
  void finalize(int data_parallel);
  int64_t micro_batches(int data_parallel) const {
    return *global_batch_size / (*micro_batch_size * data_parallel);
  }
};

struct OptimizerSettings {
  optim::OptimizerConfig config;
  std::optional<double> lr;
  double min_lr = 0, lr_warmup_init = 0;
  optim::DecayStyle lr_decay_style = optim::DecayStyle::linear;
  std::optional<int64_t> lr_decay_iters;
  int64_t lr_warmup_iters = 0;
  std::optional<double> lr_warmup_fraction;
  double weight_decay = 0.01;
  std::optional<double> start_weight_decay, end_weight_decay;
  optim::DecayIncrease weight_decay_increase = optim::DecayIncrease::constant;

  void fields(Fields& fields);
  // The two schedules in samples. Throws Error naming the flag.
  optim::LearningRate learning_rate(int64_t train_iters, int64_t global_batch_size) const;
  optim::WeightDecay decay(int64_t train_iters, int64_t global_batch_size) const;
};

struct DataSettings {
  std::vector<std::string> data_path;
  std::optional<std::string> split, data_cache_path;
  std::optional<std::string> tokenizer_type, tokenizer_model;
  bool mock_data = false;
  bool reset_position_ids = false, eod_mask_loss = false;

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
  void check() const;
};

struct RunSettings {
  std::optional<int64_t> eval_interval;
  int64_t eval_iters = 100;
  int64_t log_interval = 100;
  std::optional<std::string> save, model;
  std::optional<int64_t> save_interval;
  bool finetune = false;

  void fields(Fields& fields);
};

struct TrainSettings {
  models::GptFlags shape;
  BatchSettings batch;
  OptimizerSettings optimizer;
  DataSettings data;
  RuntimeSettings runtime;
  RunSettings run;

  Fields fields();
};

}  // namespace megatron::training
