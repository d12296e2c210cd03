#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "cli/bench.h"
#include "cli/step_floor.h"
#include "plan/flops.h"
#include "plan/machine_rates.h"
#include "plan/parameters.h"
#include "training/trainer.h"

namespace megatron::cli {
namespace {

constexpr std::string_view kGpt2 = "gpt2-124m", kLlama = "llama-160m";

// GPT-2 124M (Radford et al. 2019), or a Llama (Touvron et al. 2023) of the same depth and width
// with 4 query groups and own output weights: 153 million parameters. Sequence 1024, micro-batch 4,
// no dropout.
void set_defaults(training::TrainSettings& s, std::string_view preset) {
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
  if (preset == kGpt2) return;
  s.shape.vocab_size = 32000;
  s.shape.ffn_hidden_size = 3072;
  s.shape.group_query_attention = true;
  s.shape.num_query_groups = 4;
  s.shape.position_embedding = models::PositionEmbedding::rope;
  s.shape.normalization = nn::Normalization::rms_norm;
  s.shape.swiglu = true;
  s.shape.add_bias_linear = false;
  s.shape.untie = true;
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

void check(const training::TrainSettings& s) {
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
}

struct StepFields {
  training::TrainSettings settings;
  std::string preset{kGpt2};
  bool floor = true;
  double floor_seconds = 0.12;

  Fields fields() {
    Fields f = settings.fields();
    f.add("preset", &preset, {std::string(kGpt2), std::string(kLlama)}, "the model without flags");
    f.add_switch("no-floor", &floor, false, "leave out the floor of the step");
    f.add("floor-seconds", &floor_seconds, "time of each measurement of the floor");
    return f;
  }
};

// The flags' values, over the defaults of the preset among them.
std::optional<int> read_flags(StepFields& step, const Arguments& arguments) {
  std::vector<std::string> notes;
  const auto read = [&](StepFields& into) {
    Fields fields = into.fields();
    const auto code = parse_training(
        "megatron bench step [train flags]",
        "Times the training step of `megatron train` (data, clipping and optimizer included) "
        "beside "
        "the machine's matrix-product peak, sampled before, between and after the steps, and "
        "beside "
        "the step's floor: each product at the best rate of its shape among plain, packed, "
        "transposed and our own calls in this run, other kernels at the copy bandwidth. Without "
        "flags: GPT-2 124M, sequence 1024, micro-batch 4, all cores, fp32 (--bf16 for bf16). The "
        "first step is not timed.",
        fields, arguments, notes);
    if (!code) use_given_data(into.settings, fields);
    return code;
  };
  StepFields first;
  set_defaults(first.settings, kGpt2);
  if (const auto code = read(first)) return code;
  set_defaults(step.settings, first.preset);
  const auto code = read(step);
  for (const std::string& note : notes) log::info("{}", note);
  return code;
}

void print_speed(const training::TrainResult& result, const std::vector<double>& seconds,
                 const plan::PeakMeter& meter) {
  const double median = seconds[seconds.size() / 2];
  const auto sequences = static_cast<double>(*result.settings.batch.global_batch_size);
  const int64_t length = *result.settings.batch.seq_length;
  const double tokens = sequences * static_cast<double>(length);
  const double flops = plan::training_flops(result.config, length) * sequences;
  fmt::print(
      "FLOPs of a step: {:.4g} (2MNK a product, three times the forward, causal attention half); "
      "{} parameters\n",
      flops, plan::parameter_count(result.config));
  fmt::print("step time: median {:.3f} s, {:.3f} to {:.3f} s over {} steps\n", median,
             seconds.front(), seconds.back(), seconds.size());
  fmt::print(
      "{:.0f} tokens/s, {:.3f} TFLOP/s, {:.1f}% of {} GEMM peak (peak {:.3f} TFLOP/s, spread "
      "{:.0f}%{})\n",
      tokens / median, flops / median * 1e-12, 100 * flops / median / meter.peak(),
      name(result.settings.precision.type()), meter.peak() * 1e-12, 100 * meter.spread(),
      meter.spread() > plan::kNoisySpread ? ", noisy: claim nothing from this run" : "");
}

}  // namespace

int bench_step(const Arguments& arguments) {
  StepFields step;
  if (const auto code = read_flags(step, arguments)) return *code;
  step.settings.settle_ranks();
  const training::TrainSettings& s = step.settings;
  check(s);
  MG_CHECK(step.floor_seconds > 0 && step.floor_seconds <= 10,
           "--floor-seconds is {}; it must lie in (0, 10]", step.floor_seconds);
  Runtime whole(s.runtime.device_value(), s.runtime.rank_count() * s.runtime.threads_per_rank());
  plan::PeakMeter meter(whole, s.precision.type());
  meter.sample(1.0);
  std::vector<double> seconds;
  training::TrainHooks hooks;
  hooks.after_step = [&](const training::IterationReport& report) {
    // A step that was left out has no update, which would make it too fast.
    const bool whole_step = report.outcome == training::StepOutcome::updated;
    if (report.iteration > 1 && whole_step) seconds.push_back(report.seconds);
    meter.sample(0.5);
  };
  const training::TrainResult result = training::train(s, hooks);
  MG_CHECK(!seconds.empty(),
           "no step after the first was made whole, so that there is nothing to time{}",
           s.precision.fp16 ? ": each overflowed its loss scale; give --loss-scale 1024" : "");
  std::ranges::sort(seconds);
  print_speed(result, seconds, meter);
  if (!step.floor) return 0;
  if (s.runtime.rank_count() > 1 || s.precision.fp16 ||
      s.runtime.device_value().kind != DeviceKind::cpu) {
    fmt::print("no floor: it is measured for one rank on cpu in fp32 or bf16\n");
    return 0;
  }
  const StepFloor floor = measure_floor(result.config, result.settings, whole, step.floor_seconds);
  print_floor(floor, seconds[seconds.size() / 2]);
  return 0;
}

}  // namespace megatron::cli
