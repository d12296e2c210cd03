#include "report/log/megatron_line.h"

#include <fmt/core.h>

#include <cmath>
#include <ctime>

#include "tensor/finite.h"

namespace megatron::report {
namespace {

std::string moment(double time) {
  const auto seconds = static_cast<time_t>(std::floor(time));
  const auto micro = static_cast<int>((time - std::floor(time)) * 1e6);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06}", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     micro);
}

double ranks_of(const RunRecord& run) {
  const Json* ranks = run.layout.is_object() ? run.layout.find("ranks") : nullptr;
  return ranks != nullptr && ranks->is_number() ? ranks->as_number() : 1;
}

}  // namespace

std::string megatron_line(const StepRecord& r, const RunRecord& run, double time) {
  std::string line = fmt::format(" [{}] iteration {:8}/{:8} | consumed samples: {:12} |",
                                 moment(time), r.iteration, run.train_iters, r.consumed_samples);
  const auto add = [&line](std::string_view format, double value) {
    line += fmt::format(fmt::runtime(format), value);
  };
  add(" elapsed time per iteration (ms): {:.1f} |", 1000 * r.seconds);
  add(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", r.flops_per_second * 1e-12 / ranks_of(run));
  add(" learning rate: {:.6E} |", r.learning_rate);
  line += fmt::format(" global batch size: {:5} |", r.global_batch_size);
  if (std::isfinite(r.mean_loss)) add(" lm loss: {:.6E} |", r.mean_loss);
  for (const MetricValue& m : r.metrics)
    line += fmt::format(" {}: {:.6E} |", readable(m.name), unsigned_nan(m.value));
  add(" loss scale: {:.1f} |", r.loss_scale == 0 ? 1 : r.loss_scale);
  add(" grad norm: {:.3f} |", r.gradient_norm);
  if (r.zero_gradients >= 0) add(" num zeros: {} |", r.zero_gradients);
  if (r.parameter_norm != 0) add(" params norm: {:.3f} |", r.parameter_norm);
  return line +
         fmt::format(" number of skipped iterations: {:3} | number of nan iterations: {:3} |",
                     r.skipped, r.losses_not_finite);
}

std::string megatron_lines(const ValidationRecord& r) {
  const std::string set = r.set.empty() || r.set == "valid" ? ""
                          : r.set == "test"                 ? " on test set"
                                                            : " on " + r.set;
  std::string line =
      fmt::format(" validation loss at iteration {}{} | {} value: {:.6E} | ", r.iteration, set,
                  r.of_objective ? "loss" : "lm loss", unsigned_nan(r.loss));
  if (!r.of_objective)
    line += fmt::format("lm loss PPL: {:.6E} | ", unsigned_nan(perplexity(r.loss)));
  for (const ValidationRecord::Metric& metric : r.metrics)
    line += fmt::format("{}: {:.6E} | ", metric.name, unsigned_nan(metric.value));
  const std::string rule(line.size() + 1, '-');
  return rule + "\n" + line + "\n" + rule;
}

}  // namespace megatron::report
