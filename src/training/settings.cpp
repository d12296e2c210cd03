#include "training/settings.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <thread>

#include "base/error.h"

namespace megatron::training {

void BatchSettings::fields(Fields& f) {
  f.add("seq-length", &seq_length, "tokens of a sequence");
  f.add("micro-batch-size", &micro_batch_size, "sequences that a rank takes at once");
  f.add("global-batch-size", &global_batch_size,
        "sequences of an optimizer step; default micro-batch size x ranks");
  f.add("train-iters", &train_iters, "optimizer steps");
  f.add("train-samples", &train_samples,
        "sequences to train on, instead of --train-iters: as many whole steps as they fill");
  f.add("step-batch-size-schedule", &step_batch_size_schedule,
        "global batch size by tokens consumed, instead of --global-batch-size: \"0:768 250B:1536 "
        "500B:3072\"");
  f.add(
      "rampup-batch-size", &rampup_batch_size,
      "START INCREMENT SAMPLES: the global batch size grows from START to --global-batch-size in "
      "equal steps of INCREMENT over SAMPLES sequences (today's Megatron-LM accepts this flag and "
      "ignores it)");
  f.add_switch(
      "decrease-batch-size-if-needed", &decrease_batch_size, true,
      "a global batch size that is no multiple of micro-batch size x ranks is rounded down");
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

namespace {

int64_t integer(const std::string& text, std::string_view flag) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  MG_CHECK(error == std::errc() && end == text.data() + text.size(), "--{}: '{}' is no integer",
           flag, text);
  return value;
}

data::BatchSchedule make_schedule(const BatchSettings& s) {
  const std::vector<std::string>& ramp = s.rampup_batch_size;
  if (s.step_batch_size_schedule) {
    MG_CHECK(ramp.empty() && !s.decrease_batch_size,
             "--step-batch-size-schedule does not go with {}: drop one",
             ramp.empty() ? "--decrease-batch-size-if-needed" : "--rampup-batch-size");
    return data::BatchSchedule::steps(*s.step_batch_size_schedule, *s.seq_length);
  }
  if (ramp.empty()) return data::BatchSchedule::constant(*s.global_batch_size);
  constexpr std::string_view kFlag = "rampup-batch-size";
  MG_CHECK(ramp.size() == 3, "--{} takes three numbers, START INCREMENT SAMPLES, and got {}", kFlag,
           ramp.size());
  return data::BatchSchedule::ramp(integer(ramp[0], kFlag), integer(ramp[1], kFlag),
                                   integer(ramp[2], kFlag), *s.global_batch_size);
}

}  // namespace

void BatchSettings::finalize(int data_parallel) {
  const auto positive = [](const std::optional<int64_t>& value, std::string_view flag,
                           int64_t limit = int64_t{1} << 31) {
    MG_CHECK(value.has_value(), "--{} is needed", flag);
    MG_CHECK(*value > 0 && *value < limit, "--{} is {}; it must lie in [1, 2^{})", flag, *value,
             std::bit_width(static_cast<uint64_t>(limit)) - 1);
  };
  positive(seq_length, "seq-length");
  positive(micro_batch_size, "micro-batch-size");
  MG_CHECK(!train_iters || !train_samples,
           "--train-iters {} and --train-samples {} are both given; give one", *train_iters,
           *train_samples);
  if (train_samples) {
    positive(train_samples, "train-samples", int64_t{1} << 53);
  } else {
    positive(train_iters, "train-iters");
  }
  if (step_batch_size_schedule) {
    MG_CHECK(!global_batch_size,
             "--global-batch-size {} and --step-batch-size-schedule are both given; give one",
             *global_batch_size);
  } else {
    if (!global_batch_size) global_batch_size = *micro_batch_size * data_parallel;
    positive(global_batch_size, "global-batch-size");
  }
  schedule = make_schedule(*this);
  schedule.divide(*micro_batch_size, data_parallel, decrease_batch_size);
  global_batch_size = schedule.last();
  if (train_samples) {
    train_iters = schedule.iterations_within(*train_samples);
    MG_CHECK(*train_iters > 0, "--train-samples {} are fewer than the first global batch of {}",
             *train_samples, schedule.batch(0));
    positive(train_iters, "train-samples, in iterations,");
  }
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
  f.add("lr-decay-samples", &lr_decay_samples,
        "the same in samples; default --train-samples where that is given");
  f.add("lr-warmup-iters", &lr_warmup_iters, "steps of linear warm-up");
  f.add("lr-warmup-samples", &lr_warmup_samples, "the same in samples");
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

optim::LearningRate OptimizerSettings::learning_rate(const BatchSettings& batch) const {
  MG_CHECK(lr.has_value(), "--lr is needed");
  const int warm_ups = (lr_warmup_fraction ? 1 : 0) + (lr_warmup_iters != 0 ? 1 : 0) +
                       (lr_warmup_samples != 0 ? 1 : 0);
  MG_CHECK(warm_ups <= 1,
           "of --lr-warmup-fraction {}, --lr-warmup-iters {} and --lr-warmup-samples {} only one "
           "can be given",
           lr_warmup_fraction.value_or(0), lr_warmup_iters, lr_warmup_samples);
  MG_CHECK(!lr_decay_iters || !lr_decay_samples,
           "--lr-decay-iters {} and --lr-decay-samples {} are both given; give one",
           *lr_decay_iters, *lr_decay_samples);
  MG_CHECK(!lr_warmup_fraction || (*lr_warmup_fraction >= 0 && *lr_warmup_fraction < 1),
           "--lr-warmup-fraction is {}; it must lie in [0, 1)", *lr_warmup_fraction);
  const auto samples = [&](int64_t iterations, std::string_view flag) {
    MG_CHECK(iterations >= 0, "--{} is {}; it cannot be negative", flag, iterations);
    return static_cast<double>(batch.schedule.samples_after(iterations));
  };
  optim::LearningRate schedule;
  schedule.max = *lr;
  schedule.min = min_lr;
  schedule.warmup_init = lr_warmup_init;
  schedule.decay = lr_decay_samples ? static_cast<double>(*lr_decay_samples)
                   : lr_decay_iters
                       ? samples(*lr_decay_iters, "lr-decay-iters")
                       : static_cast<double>(batch.train_samples.value_or(batch.total_samples()));
  schedule.warmup = lr_warmup_fraction       ? *lr_warmup_fraction * schedule.decay
                    : lr_warmup_samples != 0 ? static_cast<double>(lr_warmup_samples)
                                             : samples(lr_warmup_iters, "lr-warmup-iters");
  schedule.style = lr_decay_style;
  schedule.check();
  return schedule;
}

optim::WeightDecay OptimizerSettings::decay(const BatchSettings& batch) const {
  const optim::WeightDecay schedule{.start = start_weight_decay.value_or(weight_decay),
                                    .end = end_weight_decay.value_or(weight_decay),
                                    .steps = batch.train_samples.value_or(batch.total_samples()),
                                    .style = weight_decay_increase};
  schedule.check();
  return schedule;
}

void DataSettings::fields(Fields& f) {
  f.add("data-path", &data_path,
        "prefix of a .bin/.idx pair, or several, to be mixed by size; or weights and prefixes in "
        "turn: 0.7 a 0.3 b");
  f.add("data-args-path", &data_args_path, "file with what --data-path would be given");
  f.add("train-data-path", &train_data_path,
        "as --data-path, for training alone and undivided by --split");
  f.add("valid-data-path", &valid_data_path, "the same for validation");
  f.add("test-data-path", &test_data_path, "the same for testing");
  f.add("per-split-data-args-path", &per_split_data_args_path,
        "JSON file with such lists: {\"train\": [...], \"valid\": [...], \"test\": [...]}");
  f.add("mid-level-dataset-surplus", &mid_level_dataset_surplus,
        "share of samples by which a weighted data set is built larger than needed");
  f.add("num-dataset-builder-threads", &builder_threads,
        "data sets that are opened and indexed at a time; default the number of cores");
  f.add("split", &split,
        "shares of the documents for training, validation and test; default 969, 30, 1");
  f.add("data-cache-path", &data_cache_path,
        "folder of the sample indices; default beside the data");
  TokenizerSettings::fields(f);
  f.add_switch("mock-data", &mock_data, true, "synthetic tokens instead of --data-path");
  f.add_switch("reset-position-ids", &reset_position_ids, true,
               "positions begin again after each end-of-document token");
  f.add_switch("reset-attention-mask", &reset_attention_mask, true,
               "attention sees nothing before the last end-of-document token");
  f.add_switch("dataloader-inter-document-masking", &inter_document_masking, true,
               "positions and attention begin again at the borders of stored sequences, whether or "
               "not they end with the end-of-document token");
  f.add_switch("no-mmap-bin-files", &mmap_bin_files, false,
               ".bin files are read piece by piece, not mapped");
  f.add_switch("no-create-attention-mask-in-dataloader", &attention_mask_in_dataloader, false,
               "accepted: attention masks are never made, with or without this flag");
  f.add_switch("allow-ambiguous-pad-tokens", &allow_ambiguous_pad_tokens, true,
               "labels that are the padding token do not count even where it is also the "
               "end-of-document or another special token");
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

void RuntimeSettings::join(const comm::Processes& processes) {
  if (!processes.launched()) return;
  MG_CHECK(ranks.value_or(processes.size()) == processes.size(),
           "--ranks is {} and {} were launched; drop --ranks", *ranks, processes.description());
  ranks = processes.size();
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (!threads) threads = std::max(1, cores / processes.local_size());
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
  f.add_switch("full-validation", &full_validation, true,
               "each evaluation takes the whole validation split, once, instead of --eval-iters");
  f.add_switch("multiple-validation-sets", &multiple_validation_sets, true,
               "the data sets of --valid-data-path are evaluated one by one, instead of mixed; "
               "needs --full-validation");
  f.add("validation-set-names", &validation_set_names,
        "their names in the log; default their prefixes");
  f.add("dataloader-type", &dataloader_type,
        "order of the training samples: single (as indexed, each once) or cyclic (in random order, "
        "epoch after epoch)");
  f.add_switch("no-data-sharding", &data_sharding, false,
               "with --dataloader-type cyclic: the samples are not divided among the ranks before "
               "they are put in random order");
  f.add("model", &model,
        "Hugging Face directory that gives the shape, and with --finetune the weights");
  f.add("sample-interval", &sample_interval,
        "steps between texts that the model writes for the log; default: none");
  f.add("sample-prompt", &sample_prompt, "what they begin with, one text or several");
  f.add("sample-tokens", &sample_tokens, "tokens of each");
}

Fields TrainSettings::fields() {
  Fields f;
  shape.fields(f);
  batch.fields(f);
  optimizer.fields(f);
  data.fields(f);
  runtime.fields(f);
  run.fields(f);
  checkpoint.fields(f);
  log.fields(f);
  return f;
}

}  // namespace megatron::training
