#include "bench/step.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "bench/computed_by.h"
#include "bench/device_text.h"
#include "bench/step_floor.h"
#include "bench/step_kernels.h"
#include "plan/figures.h"
#include "plan/machine_rates.h"
#include "post_training/tasks.h"
#include "settings/presets.h"
#include "training/plan/make_plan.h"
#include "training/run_plan.h"
#include "training/settle.h"
#include "training/trainer.h"

namespace megatron::bench {
namespace {

constexpr int64_t kGpuSteps = 25, kGpuUntimed = 5;
constexpr double kGpuSample = 0.4;  // seconds; a product on a GPU takes about a millisecond

// Measurements of the steps.
struct StepSpeed {
  std::vector<double> seconds;   // of timed steps, ascending
  double tokens = 0, flops = 0;  // per step
  double first_loss = 0, last_loss = 0;
  std::vector<double> planned;  // seconds per step by each estimate, ascending
  double median() const { return seconds[seconds.size() / 2]; }
  std::optional<double> plan() const {
    return planned.empty() ? std::nullopt : std::optional(planned[planned.size() / 2]);
  }
};

// The estimates that a bench makes of its step.
class Estimates {
 public:
  Estimates(const settings::TrainSettings& settings, std::shared_ptr<const training::Task> task,
            int64_t count)
      : settings_(settings), task_(std::move(task)), left_(count) {}
  void make_one() {
    if (left_ == 0) return;
    --left_;
    const plan::Plan plan = training::make_plan(
        settings_,
        {.task = task_, .time = true, .rates = plan::user_rates(settings_.runtime.measure_peak)});
    if (plan.step_seconds) seconds_.push_back(*plan.step_seconds);
    else left_ = 0;
  }
  void make_rest() {
    while (left_ > 0) make_one();
  }
  std::vector<double> sorted() const {
    std::vector<double> seconds = seconds_;
    std::ranges::sort(seconds);
    return seconds;
  }

 private:
  const settings::TrainSettings& settings_;
  std::shared_ptr<const training::Task> task_;
  int64_t left_;
  std::vector<double> seconds_;
};

StepSpeed speed_of(const training::TrainResult& result, int64_t untimed) {
  StepSpeed speed;
  for (const training::IterationReport& report : result.iterations) {
    // A skipped step has no update and would appear too fast.
    const bool whole = report.outcome == training::StepOutcome::updated;
    if (report.iteration > untimed && whole) speed.seconds.push_back(report.seconds);
  }
  std::ranges::sort(speed.seconds);
  const auto sequences = static_cast<double>(*result.settings.batch.global_batch_size);
  const int64_t length = *result.settings.batch.seq_length;
  speed.tokens = sequences * static_cast<double>(length);
  speed.flops = result.model->training_flops(length) * sequences;
  if (!result.iterations.empty()) {
    speed.first_loss = result.iterations.front().loss;
    speed.last_loss = result.iterations.back().loss;
  }
  return speed;
}

bool noisy(const plan::PeakMeter& meter) { return meter.spread() > plan::kNoisySpread; }

void print_estimates(const StepSpeed& speed, const plan::PeakMeter& meter) {
  if (!speed.plan()) {
    fmt::print("megatron plan's estimate: {}\n", plan::kUnknown);
    return;
  }
  const double step = speed.median();
  fmt::print(
      "megatron plan's estimate: {:.3f} s, the median of {}; {:.2f} of the step's time, {:.2f} to "
      "{:.2f}{}\n",
      *speed.plan(), speed.planned.size(), *speed.plan() / step, speed.planned.front() / step,
      speed.planned.back() / step,
      noisy(meter)
          ? fmt::format("; noisy: the samples of the peak differ by {:.0f}%", 100 * meter.spread())
          : "");
}

void print_speed(const training::TrainResult& result, const StepSpeed& speed, Device device,
                 const plan::PeakMeter& meter, const GpuWatch& watch) {
  const double rate = speed.flops / speed.median();
  fmt::print(
      "FLOPs of a step: {:.4g} (2MNK per GEMM, three times the forward pass, causal attention "
      "counted half); {} parameters\n",
      speed.flops, result.model->parameter_count());
  fmt::print("step time: median {:.3f} s, {:.3f} to {:.3f} s over {} steps\n", speed.median(),
             speed.seconds.front(), speed.seconds.back(), speed.seconds.size());
  print_estimates(speed, meter);
  fmt::print(
      "{:.0f} tokens/s, {:.3f} TFLOP/s{}, {:.1f}% of {} GEMM peak (peak {:.3f} TFLOP/s, spread "
      "{:.0f}%{})\n",
      speed.tokens / speed.median(), rate * 1e-12, data_sheet_share(device, meter.type(), rate),
      100 * rate / meter.peak(), name(meter.type()), meter.peak() * 1e-12, 100 * meter.spread(),
      noisy(meter) ? ", too noisy: do not rely on this run" : "");
  fmt::print("loss {:.4f} at the first step, {:.4f} at the last, on {}\n", speed.first_loss,
             speed.last_loss,
             result.settings.data.mock_data ? "mock data" : result.settings.data.data_path[0]);
  fmt::print("computed by: {}\n", computed_by(result));
  if (device.kind != DeviceKind::cuda) return;
  fmt::print("{}\n{}\n", device_text(device, 1), watch.text());
}

// floor: null if none was measured.
Json as_json(const training::TrainResult& result, const StepSpeed& speed, Json floor, Device device,
             const plan::PeakMeter& meter, const GpuWatch& watch) {
  const double rate = speed.flops / speed.median();
  const auto sheet = data_sheet_of(device, meter.type());
  return Json::Object{{"device", device_text(device, result.settings.runtime.threads_per_rank())},
                      {"type", name(meter.type())},
                      {"parameters", result.model->parameter_count()},
                      {"sequence", *result.settings.batch.seq_length},
                      {"micro_batch", *result.settings.batch.micro_batch_size},
                      {"global_batch", *result.settings.batch.global_batch_size},
                      {"steps", static_cast<int64_t>(speed.seconds.size())},
                      {"step_seconds", speed.median()},
                      {"fastest_seconds", speed.seconds.front()},
                      {"slowest_seconds", speed.seconds.back()},
                      {"plan_seconds", speed.plan() ? Json(*speed.plan()) : Json()},
                      {"plan_ratio", speed.plan() ? Json(*speed.plan() / speed.median()) : Json()},
                      {"plan_runs", Json::Array(speed.planned.begin(), speed.planned.end())},
                      {"noisy", noisy(meter)},
                      {"tokens_per_second", speed.tokens / speed.median()},
                      {"flops_per_second", rate},
                      {"data_sheet_peak", sheet ? Json(*sheet) : Json()},
                      {"mfu", sheet ? Json(rate / *sheet) : Json()},
                      {"gemm_peak", meter.peak()},
                      {"gemm_peak_spread", meter.spread()},
                      {"first_loss", speed.first_loss},
                      {"last_loss", speed.last_loss},
                      {"floor", std::move(floor)},
                      {"computed_by", computed_by_json(result)},
                      {"clocks", watch.text()}};
}

// The kernels of a step on a GPU, or anywhere without a step.
StepKernels measure_kernels(const plan::StepWork& work, Runtime& runtime, double peak,
                            double seconds) {
  plan::BandwidthMeter copies(runtime);
  copies.sample();
  return measure_step_kernels(work, runtime, {peak, copies.best()}, seconds);
}

bool has_floor(const settings::TrainSettings& s) {
  const bool gpu = s.runtime.device_kind() == DeviceKind::cuda;
  return s.runtime.rank_count() == 1 && (gpu || !s.precision.fp16);
}

constexpr const char* kNoFloor =
    "the floor is not measured: it needs a single rank, and on a CPU fp32 or bf16";

int bench_kernels_of_step(const StepBench& step, plan::PeakMeter& meter) {
  MG_CHECK(step.settings.runtime.rank_count() == 1,
           "--kernels-only measures the step of one rank; drop --ranks and the parallel sizes");
  const auto task = step.task();
  training::SettledRun run = training::settle_run(step.settings, task);
  if (run.settings.runtime.device_kind() == DeviceKind::cuda)  // selects by the available memory
    training::make_plan(run.settings, run.model, run.vocabulary, {.task = task, .samples = false});
  Runtime runtime(run.settings.runtime.device_value(), run.settings.runtime.threads_per_rank());
  run.settings.runtime.limit_kernels(runtime.stream());
  GpuWatch watch(runtime.device());
  const StepKernels kernels =
      measure_kernels(training::step_work(run.settings, run.model, task.get()), runtime,
                      meter.peak(), step.floor_seconds);
  watch.look();
  if (step.json) {
    fmt::print("{}\n",
               Json(Json::Object{{"device", device_text(runtime.device(), runtime.pool().size())},
                                 {"type", name(meter.type())},
                                 {"gemm_peak", kernels.limits.peak},
                                 {"copy_bandwidth", kernels.limits.bandwidth},
                                 {"clocks", watch.text()},
                                 {"kernels", as_json(kernels)}})
                   .dump(1));
    return 0;
  }
  print_step_kernels(kernels, std::nullopt);
  fmt::print("{}\n", device_text(runtime.device(), runtime.pool().size()));
  if (const std::string clocks = watch.text(); !clocks.empty()) fmt::print("{}\n", clocks);
  return 0;
}

// Prints the floor of the step, or gives it as JSON (null: none). runtime: of the steps on a CPU.
Json tell_floor(const StepBench& step, const training::TrainResult& result, const StepSpeed& speed,
                double peak, Runtime* runtime) {
  const settings::TrainSettings& s = result.settings;
  if (!step.floor) return {};
  if (!has_floor(s)) {
    if (!step.json) fmt::print("{}\n", kNoFloor);
    return {};
  }
  const plan::StepWork work = training::step_work(s, result.model, step.task().get());
  if (s.runtime.device_kind() != DeviceKind::cuda) {
    const StepFloor floor = measure_floor(work, *runtime, step.floor_seconds);
    if (step.json) return as_json(floor, speed.median());
    print_floor(floor, speed.median());
    return {};
  }
  Runtime gpu(s.runtime.device_value(), s.runtime.threads_per_rank());
  s.runtime.limit_kernels(gpu.stream());
  const StepKernels kernels = measure_kernels(work, gpu, peak, step.floor_seconds);
  if (step.json) {
    return Json::Object{{"seconds", kernels.floor()},
                        {"share", kernels.floor() / speed.median()},
                        {"kernel_seconds", kernels.seconds()},
                        {"copy_bandwidth", kernels.limits.bandwidth},
                        {"kernels", as_json(kernels)}};
  }
  print_step_kernels(kernels, speed.median());
  return {};
}

// A failure of the device at this point does not lose the earlier measurements.
void sample_after_steps(plan::PeakMeter& meter) {
  try {
    meter.sample(kGpuSample);
  } catch (const Error& error) {
    log::warning(
        "the GEMM peak was measured before the steps; after them it could not be "
        "measured: {}",
        error.what());
  }
}

}  // namespace

void StepBench::set_defaults(DeviceKind device) {
  settings::TrainSettings& s = settings;
  s.preset = settings::kDefaultPreset;
  s.batch.train_iters = device == DeviceKind::cuda ? kGpuSteps : 6;
  s.optimizer.lr = 6e-4;
  s.optimizer.lr_decay_style = optim::DecayStyle::constant;
  s.log.log_interval = 1;
}

void StepBench::settle() {
  if (settings.data.data_path.empty()) settings.data.mock_data = true;
  settings.settle_task();
}

std::shared_ptr<const training::Task> StepBench::task() const {
  return post_training::make_task(settings.data);
}

void StepBench::check() const {
  const settings::TrainSettings& s = settings;
  const int64_t untimed = untimed_steps();
  MG_CHECK(untimed >= 1,
           "--untimed-steps is {}; it must be at least 1: the first step allocates memory",
           untimed);
  MG_CHECK(s.batch.train_iters.value_or(0) > untimed,
           "--train-iters is {}; at least {} are needed: --untimed-steps {} excludes the first",
           s.batch.train_iters.value_or(0), untimed + 1, untimed);
  MG_CHECK(!s.batch.step_batch_size_schedule && s.batch.rampup_batch_size.empty() &&
               !s.batch.decrease_batch_size,
           "bench times steps of a constant size; drop --step-batch-size-schedule, "
           "--rampup-batch-size and --decrease-batch-size-if-needed");
  MG_CHECK(!s.checkpoint.save && !s.checkpoint.load,
           "bench does not save or resume; drop --save and --load");
  MG_CHECK(!s.run.eval_interval || s.run.eval_iters == 0,
           "bench does not evaluate; drop --eval-interval, or give --eval-iters 0");
  MG_CHECK(!s.run.sample_interval, "bench does not generate samples; drop --sample-interval");
  MG_CHECK(s.data.reads_tokens(),
           "bench times steps on token files or mock data, and --task {} reads examples; leave "
           "--task out",
           s.data.task);
  training::check_settings(s, false);
}

Fields StepBench::fields() {
  Fields f = settings.fields();
  f.begin_group("measurement");
  f.add_switch("no-floor", &floor, false,
               "do not measure the floor, the least time the step "
               "could take");
  f.add("floor-seconds", &floor_seconds, "seconds per measurement of the floor");
  f.add_switch("kernels-only", &kernels_only, true,
               "do not train: measure each kernel of a step on its own");
  f.add("untimed-steps", &untimed,
        "warm-up steps that are not timed; default 1, on a GPU a fifth of --train-iters and at "
        "most 5");
  f.add("plan-runs", &plan_runs,
        "number of megatron plan estimates of the step, made between the steps (on a GPU before "
        "them); their median is reported; 0: none; default 5, on a GPU 1");
  f.begin_group("output");
  f.add_switch("json", &json, true, "print the result as JSON; step lines go to standard error");
  f.common({"no-floor", "kernels-only", "untimed-steps", "json"});
  return f;
}

int64_t StepBench::estimates() const {
  return plan_runs.value_or(settings.runtime.device_kind() == DeviceKind::cuda ? 1 : 5);
}

int64_t StepBench::untimed_steps() const {
  const int64_t steps = settings.batch.train_iters.value_or(0);
  const bool gpu = settings.runtime.device_kind() == DeviceKind::cuda;
  return untimed.value_or(gpu ? std::clamp<int64_t>(steps / 5, 1, kGpuUntimed) : 1);
}

int measure_step(StepBench& step) {
  step.settle();
  step.settings.settle_ranks();
  const settings::TrainSettings& s = step.settings;
  step.check();
  MG_CHECK(step.floor_seconds > 0 && step.floor_seconds <= 10,
           "--floor-seconds is {}; it must lie in (0, 10]", step.floor_seconds);
  MG_CHECK(step.estimates() >= 0 && step.estimates() <= 100,
           "--plan-runs is {}; it must lie in [0, 100]", step.estimates());
  s.runtime.limit_instruction_set();
  const Device device = s.runtime.device_value();
  const bool gpu = device.kind == DeviceKind::cuda;
  const int threads = s.runtime.rank_count() * s.runtime.threads_per_rank();
  // On a GPU, the samples' memory would be unavailable to the run.
  std::optional<Runtime> whole;
  if (!gpu) whole.emplace(device, threads);
  plan::PeakMeter meter = whole ? plan::PeakMeter(*whole, s.precision.type())
                                : plan::PeakMeter(device, threads, s.precision.type());
  meter.sample(gpu ? kGpuSample : 1.0);
  if (step.kernels_only) return bench_kernels_of_step(step, meter);
  const auto task = step.task();
  Estimates estimates(s, task, step.estimates());
  estimates.make_one();
  if (gpu) estimates.make_rest();  // otherwise the run would lack the memory they use
  GpuWatch watch(device);
  training::TrainHooks hooks{
      .task = task, .peak = meter.peak(), .lines = step.json ? stderr : stdout};
  hooks.after_step = [&](const training::IterationReport& report) {
    if (gpu && report.iteration > step.untimed_steps()) watch.look();
    if (gpu) return;
    meter.sample(0.5);
    if (report.iteration < *s.batch.train_iters) estimates.make_one();
  };
  const training::TrainResult result = training::train(s, hooks);
  if (gpu) sample_after_steps(meter);
  StepSpeed speed = speed_of(result, step.untimed_steps());
  estimates.make_rest();
  speed.planned = estimates.sorted();
  MG_CHECK(!speed.seconds.empty(),
           "no step after the first was applied, so there is nothing to time{}",
           s.precision.fp16 ? ": each overflowed its loss scale; give --loss-scale 1024" : "");
  if (!step.json) {
    print_speed(result, speed, device, meter, watch);
    std::fflush(stdout);
  }
  Json floor = tell_floor(step, result, speed, meter.peak(), whole ? &*whole : nullptr);
  if (step.json)
    fmt::print("{}\n", as_json(result, speed, std::move(floor), device, meter, watch).dump(1));
  return 0;
}

}  // namespace megatron::bench
