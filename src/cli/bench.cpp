#include "cli/bench.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "cli/command.h"
#include "training/flops.h"
#include "training/peak.h"
#include "training/trainer.h"

namespace megatron::cli {
namespace {

constexpr double kNoisySpread = 0.15;

// GPT-2 124M (Radford et al. 2019) at sequence 1024, micro-batch 4, without dropout, on synthetic
// tokens.
void set_defaults(training::TrainSettings& s) {
  s.shape.num_layers = 12;
  s.shape.hidden_size = 768;
  s.shape.num_attention_heads = 12;
  s.shape.vocab_size = 50257;
  s.shape.hidden_dropout = s.shape.attention_dropout = 0;
  s.batch.seq_length = 1024;
  s.batch.micro_batch_size = 4;
  s.batch.train_iters = 6;
  s.optimizer.lr = 6e-4;
  s.optimizer.lr_decay_style = optim::DecayStyle::constant;
  s.log.log_interval = 1;
}

// Mock data and a number of tokens are for runs without data of their own.
void use_given_data(training::TrainSettings& s, Fields& fields) {
  if (s.data.data_path.empty()) s.data.mock_data = true;
  const bool vocabulary_elsewhere = s.data.tokenizer_model || s.run.model;
  if (vocabulary_elsewhere && !fields.find("vocab-size")->given) s.shape.vocab_size.reset();
  if (!s.run.model) return;
  if (!fields.find("num-layers")->given) s.shape.num_layers.reset();
  if (!fields.find("hidden-size")->given) s.shape.hidden_size.reset();
  if (!fields.find("num-attention-heads")->given) s.shape.num_attention_heads.reset();
}

int bench_step(const Arguments& arguments) {
  training::TrainSettings s;
  set_defaults(s);
  Fields fields = s.fields();
  if (const auto code = parse(
          "megatron bench step [train flags]",
          "Times the training step of `megatron train` (data, clipping and optimizer included) "
          "beside the machine's "
          "matrix-product peak, sampled before, between and after the steps. Without flags: GPT-2 "
          "124M, sequence "
          "1024, micro-batch 4, all cores, fp32 (--bf16 for bf16). The first step is not timed.",
          fields, {}, arguments)) {
    return *code;
  }
  use_given_data(s, fields);
  MG_CHECK(s.batch.train_iters.value_or(0) >= 2,
           "--train-iters is {}; at least 2 are needed: the first step is not timed",
           s.batch.train_iters.value_or(0));
  MG_CHECK(
      !s.batch.step_batch_size_schedule && s.batch.rampup_batch_size.empty() &&
          !s.batch.decrease_batch_size,
      "bench times steps of one size; drop --step-batch-size-schedule, --rampup-batch-size and "
      "--decrease-batch-size-if-needed");
  MG_CHECK(!s.checkpoint.save && !s.checkpoint.load,
           "bench saves and resumes nothing; drop --save and --load");
  MG_CHECK(!s.run.eval_interval, "bench evaluates nothing; drop --eval-interval");
  s.runtime.check();
  Runtime whole(s.runtime.device_value(), s.runtime.rank_count() * s.runtime.threads_per_rank());
  training::PeakMeter meter(whole, s.precision.type());
  meter.sample(1.0);
  std::vector<double> seconds;
  training::TrainHooks hooks;
  hooks.after_step = [&](const training::IterationReport& report) {
    if (report.iteration > 1) seconds.push_back(report.seconds);
    meter.sample(0.5);
  };
  const training::TrainResult result = training::train(s, hooks);
  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];
  const auto sequences = static_cast<double>(*result.settings.batch.global_batch_size);
  const int64_t length = *result.settings.batch.seq_length;
  const double tokens = sequences * static_cast<double>(length);
  const double flops = training::training_flops(result.config, length) * sequences;
  fmt::print(
      "FLOPs of a step: {:.4g} (2MNK a product, three times the forward, causal attention half)\n",
      flops);
  fmt::print("step time: median {:.3f} s, {:.3f} to {:.3f} s over {} steps\n", median,
             seconds.front(), seconds.back(), seconds.size());
  fmt::print(
      "{:.0f} tokens/s, {:.3f} TFLOP/s, {:.1f}% of {} GEMM peak (peak {:.3f} TFLOP/s, spread "
      "{:.0f}%{})\n",
      tokens / median, flops / median * 1e-12, 100 * flops / median / meter.peak(),
      name(s.precision.type()), meter.peak() * 1e-12, 100 * meter.spread(),
      meter.spread() > kNoisySpread ? ", noisy: claim nothing from this run" : "");
  return 0;
}

int bench_gemm(const Arguments& arguments) {
  training::RuntimeSettings runtime_settings;
  bool bf16 = false;
  double seconds = 5;
  Fields f;
  f.add_switch("bf16", &bf16, true, "bfloat16; else fp32");
  f.add("seconds", &seconds, "time to spend");
  f.add("threads", &runtime_settings.threads, "CPU threads; default all cores");
  if (const auto code =
          parse("megatron bench gemm [flags]",
                "The machine's matrix-product rate: the peak that speeds are compared with.", f, {},
                arguments)) {
    return *code;
  }
  MG_CHECK(seconds > 0 && seconds <= 3600, "--seconds is {}; it must lie in (0, 3600]", seconds);
  runtime_settings.check();
  Runtime runtime({DeviceKind::cpu, 0}, runtime_settings.threads_per_rank());
  const DType type = bf16 ? DType::bf16 : DType::f32;
  const auto shapes = training::sample_gemm_rates(runtime, type, seconds);
  fmt::print("{:>6} {:>6} {:>6}  {:>10}\n", "M", "N", "K", "GFLOP/s");
  for (const auto& s : shapes)
    fmt::print("{:>6} {:>6} {:>6}  {:>10.1f}\n", s.m, s.n, s.k, s.rate * 1e-9);
  fmt::print("{} GEMM peak {:.3f} TFLOP/s with {} threads\n", name(type),
             training::best_rate(shapes) * 1e-12, runtime.pool().size());
  return 0;
}

constexpr Subcommand kCommands[] = {
    {"step", "a training step beside the machine's peak", bench_step},
    {"gemm", "matrix products: the peak itself", bench_gemm},
    {"tokenize", "text to token ids, in memory", bench_tokenize},
    {"preprocess", "JSON lines to token files, by one worker and by two", bench_preprocess},
    {"index", "sample indices: built cold, stored, opened again", bench_index},
    {"generate", "text: tokens a second beside the bandwidth of memory", bench_generate},
};

}  // namespace

int bench(const Arguments& arguments) {
  return dispatch("megatron bench", "Measures speed on this machine.", kCommands, arguments);
}

}  // namespace megatron::cli
