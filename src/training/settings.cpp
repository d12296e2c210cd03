#include "training/settings.h"

#include <algorithm>
#include <thread>

#include "base/error.h"

namespace megatron::training {

void BatchSettings::fields(Fields& f) {
  f.add("seq-length", &seq_length, "tokens of a sequence");
  f.add("micro-batch-size", &micro_batch_size, "sequences that a rank takes at once");
  f.add("global-batch-size", &global_batch_size,
        "sequences of an optimizer step; default micro-batch size x ranks");
  f.add("train-iters", &train_iters, "optimizer steps");
  f.add_switch("calculate-per-token-loss", &per_token_loss, true,
               "every counted token of a step weighs the same (the default)");
  f.add_switch(
      "no-calculate-per-token-loss", &per_token_loss, false,
      "mean of the micro-batches' means, as Megatron-LM does without --calculate-per-token-loss");
  f.add_switch(
      "bf16", &bf16, true,
      "parameters and activations in bfloat16, master weights and gradients in fp32; else fp32");
  f.add_switch("recompute-activations", &recompute_activations, true,
               "same as --recompute-granularity full here: "
               "attention never stores its scores, so selective recompute has nothing to save");
  f.add("recompute-granularity", &recompute_granularity,
        "full: keep each layer's input only and run its forward again in backward");
}

void BatchSettings::finalize(int data_parallel) {
  const auto positive = [](const std::optional<int64_t>& value, std::string_view flag) {
    MG_CHECK(value.has_value(), "--{} is needed", flag);
    MG_CHECK(*value > 0 && *value < (int64_t{1} << 31), "--{} is {}; it must lie in [1, 2^31)",
             flag, *value);
  };
  positive(seq_length, "seq-length");
  positive(micro_batch_size, "micro-batch-size");
  positive(train_iters, "train-iters");
  const int64_t together = *micro_batch_size * data_parallel;
  if (!global_batch_size) global_batch_size = together;
  positive(global_batch_size, "global-batch-size");
  MG_CHECK(*global_batch_size % together == 0,
           "--global-batch-size {} is not a multiple of --micro-batch-size {} x {} data-parallel "
           "ranks = {}; change one of them",
           *global_batch_size, *micro_batch_size, data_parallel, together);
  if (recompute_granularity && *recompute_granularity != "full") {
    fail(
        "--recompute-granularity is '{}'; 'full' is supported (attention never stores its scores, "
        "so 'selective' would "
        "recompute nothing)",
        *recompute_granularity);
  }
  if (recompute_activations) recompute_granularity = "full";
}

void OptimizerSettings::fields(Fields& f) {
  f.add_enum<optim::Method>("optimizer", &config.method,
                            {{"adam", optim::Method::adam}, {"sgd", optim::Method::sgd}},
                            "adam is AdamW");
  f.add("lr", &lr, "highest learning rate");
  f.add("min-lr", &min_lr, "learning rate after the decay");
  f.add_enum<optim::DecayStyle>("lr-decay-style", &lr_decay_style,
                                {{"constant", optim::DecayStyle::constant},
                                 {"linear", optim::DecayStyle::linear},
                                 {"cosine", optim::DecayStyle::cosine},
                                 {"inverse-square-root", optim::DecayStyle::inverse_square_root}},
                                "how the learning rate falls after the warm-up");
  f.add("lr-decay-iters", &lr_decay_iters,
        "steps until --min-lr is reached; default --train-iters");
  f.add("lr-warmup-iters", &lr_warmup_iters, "steps of linear warm-up");
  f.add("lr-warmup-fraction", &lr_warmup_fraction, "warm-up as a share of --lr-decay-iters");
  f.add("lr-warmup-init", &lr_warmup_init, "learning rate at the first step of the warm-up");
  f.add("weight-decay", &weight_decay, "weight decay; none on norms and biases");
  f.add("start-weight-decay", &start_weight_decay,
        "weight decay at the start; default --weight-decay");
  f.add("end-weight-decay", &end_weight_decay, "weight decay at the end; default --weight-decay");
  f.add_enum<optim::DecayIncrease>("weight-decay-incr-style", &weight_decay_increase,
                                   {{"constant", optim::DecayIncrease::constant},
                                    {"linear", optim::DecayIncrease::linear},
                                    {"cosine", optim::DecayIncrease::cosine}},
                                   "how weight decay grows from start to end");
  f.add("clip-grad", &config.clip_grad, "largest L2 norm of all gradients; 0: no clipping");
  f.add("adam-beta1", &config.adam_beta1, "decay of the first moment");
  f.add("adam-beta2", &config.adam_beta2, "decay of the second moment");
  f.add("adam-eps", &config.adam_eps, "added to the root of the second moment");
  f.add("sgd-momentum", &config.sgd_momentum, "momentum of SGD");
}

optim::LearningRate OptimizerSettings::learning_rate(int64_t train_iters,
                                                     int64_t global_batch_size) const {
  MG_CHECK(lr.has_value(), "--lr is needed");
  MG_CHECK(!lr_warmup_fraction || lr_warmup_iters == 0,
           "--lr-warmup-fraction {} and --lr-warmup-iters {} are both given; give one",
           *lr_warmup_fraction, lr_warmup_iters);
  MG_CHECK(!lr_warmup_fraction || (*lr_warmup_fraction >= 0 && *lr_warmup_fraction < 1),
           "--lr-warmup-fraction is {}; it must lie in [0, 1)", *lr_warmup_fraction);
  optim::LearningRate schedule;
  const double batch = static_cast<double>(global_batch_size);
  schedule.max = *lr;
  schedule.min = min_lr;
  schedule.warmup_init = lr_warmup_init;
  schedule.decay = static_cast<double>(lr_decay_iters.value_or(train_iters)) * batch;
  schedule.warmup = lr_warmup_fraction ? *lr_warmup_fraction * schedule.decay
                                       : static_cast<double>(lr_warmup_iters) * batch;
  schedule.style = lr_decay_style;
  schedule.check();
  return schedule;
}

optim::WeightDecay OptimizerSettings::decay(int64_t train_iters, int64_t global_batch_size) const {
  const optim::WeightDecay schedule{.start = start_weight_decay.value_or(weight_decay),
                                    .end = end_weight_decay.value_or(weight_decay),
                                    .steps = train_iters * global_batch_size,
                                    .style = weight_decay_increase};
  schedule.check();
  return schedule;
}

void DataSettings::fields(Fields& f) {
  f.add("data-path", &data_path, "prefix of a .bin/.idx pair");
  f.add("split", &split,
        "shares of the documents for training, validation and test; default 969, 30, 1");
  f.add("data-cache-path", &data_cache_path,
        "folder of the sample indices; default beside the data");
  f.add("tokenizer-type", &tokenizer_type,
        "HuggingFaceTokenizer (a tokenizer.json) or NullTokenizer");
  f.add("tokenizer-model", &tokenizer_model, "tokenizer.json or a directory that holds one");
  f.add_switch("mock-data", &mock_data, true, "synthetic tokens instead of --data-path");
  f.add_switch("reset-position-ids", &reset_position_ids, true,
               "positions begin again after each end-of-document token");
  f.add_switch("eod-mask-loss", &eod_mask_loss, true,
               "no loss where the input is the end-of-document token");
}

void RuntimeSettings::fields(Fields& f) {
  f.add("ranks", &ranks,
        "ranks, as threads of this process; default the product of the parallel sizes; what the "
        "sizes leave is data-parallel");
  f.add("tensor-model-parallel-size", &tensor_parallel,
        "ranks that share each layer's matrices; this version: 1");
  f.add("pipeline-model-parallel-size", &pipeline_parallel,
        "ranks that share the layers; this version: 1");
  f.add("context-parallel-size", &context_parallel,
        "ranks that share each sequence; this version: 1");
  f.add("expert-model-parallel-size", &expert_parallel,
        "ranks that share the experts; this version: 1");
  f.add("threads", &threads, "CPU threads of each rank; default cores / ranks");
  f.add("device", &device, {"cpu", "reference"},
        "cpu, or reference: plain loops, slow, for checking");
  f.add("seed", &seed, "of initial weights, sample order and dropout");
}

int RuntimeSettings::threads_per_rank() const {
  if (threads) return static_cast<int>(*threads);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / rank_count());
}

Device RuntimeSettings::device_value() const {
  return {device == "reference" ? DeviceKind::reference : DeviceKind::cpu, 0};
}

parallel::Layout RuntimeSettings::layout() const {
  parallel::Layout layout;
  layout.tp = static_cast<int>(tensor_parallel);
  layout.pp = static_cast<int>(pipeline_parallel);
  layout.cp = static_cast<int>(context_parallel);
  layout.ep = static_cast<int>(expert_parallel);
  return layout;
}

void RuntimeSettings::check() const {
  for (const auto& [value, flag] : {std::pair{tensor_parallel, "tensor-model-parallel-size"},
                                    {pipeline_parallel, "pipeline-model-parallel-size"},
                                    {context_parallel, "context-parallel-size"},
                                    {expert_parallel, "expert-model-parallel-size"}}) {
    MG_CHECK(value == 1,
             "--{} is {}; this version divides the data only: use 1, and --ranks N for N "
             "data-parallel ranks",
             flag, value);
  }
  MG_CHECK(ranks.value_or(1) >= 1 && ranks.value_or(1) <= 1024,
           "--ranks is {}; it must lie in [1, 1024]", *ranks);
  MG_CHECK(threads.value_or(1) >= 1 && threads.value_or(1) <= 1024,
           "--threads is {}; it must lie in [1, 1024]", *threads);
  MG_CHECK(threads.value_or(1) * rank_count() <= 1024,
           "--threads {} of each of --ranks {} make {} threads; at most 1024 are possible: lower "
           "one of them",
           threads.value_or(1), rank_count(), threads.value_or(1) * rank_count());
  MG_CHECK(seed >= 0 && seed < (int64_t{1} << 32), "--seed is {}; it must lie in [0, 2^32)", seed);
}

void RunSettings::fields(Fields& f) {
  f.add("eval-interval", &eval_interval,
        "steps between evaluations on the validation split; default: none");
  f.add("eval-iters", &eval_iters, "global batches of an evaluation");
  f.add("log-interval", &log_interval, "steps between log lines");
  f.add("save", &save,
        "folder for checkpoints: DIR/iter_0000100 is a Hugging Face model directory");
  f.add("save-interval", &save_interval,
        "steps between checkpoints; the last step is always saved");
  f.add("model", &model,
        "Hugging Face directory that gives the shape, and with --finetune the weights");
  f.add_switch("finetune", &finetune, true, "begin with the weights of --model");
}

Fields TrainSettings::fields() {
  Fields f;
  shape.fields(f);
  batch.fields(f);
  optimizer.fields(f);
  data.fields(f);
  runtime.fields(f);
  run.fields(f);
  return f;
}

}  // namespace megatron::training
