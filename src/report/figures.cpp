#include "report/figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/log/record.h"
#include "report/markup.h"

namespace megatron::report {
namespace {

std::string loss_text(double loss) {
  if (!std::isfinite(loss)) return "–";
  return std::abs(loss) < 1e6 ? fmt::format("{:.4f}", loss) : fmt::format("{:.4g}", loss);
}

Figure training_loss(const RunHistory& h) {
  std::string detail = fmt::format("iteration {}", grouped(h.last_iteration));
  if (h.loss_not_finite > 0) detail += fmt::format(" · {} not finite", grouped(h.loss_not_finite));
  return {"Training loss", loss_text(h.steps.last_finite(kLoss)), detail};
}

Figure best_validation(const RunHistory& h) {
  const ValidationCurve* best = nullptr;
  for (const ValidationCurve& v : h.validations)
    if (std::isfinite(v.best) && (best == nullptr || v.best < best->best)) best = &v;
  if (best == nullptr) return {"Best validation", "–", "no validation"};
  std::string detail = fmt::format("iteration {} · perplexity {:.4g}",
                                   grouped(best->best_iteration), perplexity(best->best));
  if (h.validations.size() > 1) detail += " · " + best->set;
  return {"Best validation", loss_text(best->best), detail};
}

Figure running_time(const RunHistory& h) {
  // A session that found the run complete, or that ended before its first step, does not count.
  const auto trained = std::ranges::count_if(h.sessions, &Session::trained);
  const auto restarts = std::max<std::ptrdiff_t>(trained - 1, 0);
  std::string detail = restarts == 0   ? "no restart"
                       : restarts == 1 ? "1 restart"
                                       : fmt::format("{} restarts", restarts);
  const double left = h.steps.last(kSecondsLeft);
  if (!h.sessions.back().end && left > 0 && std::isfinite(left))
    detail += " · " + duration(left) + " left";
  return {"Running time", duration(h.elapsed), detail};
}

std::string rate_text(double rate) {
  return std::isfinite(rate) ? grouped(std::llround(std::fmin(rate, 1e15))) : "–";
}

std::string peak_detail(double rate, double peak) {
  std::string detail = std::isfinite(rate) ? flops(rate) : "";
  if (peak > 0) detail += fmt::format("{}of {}", detail.empty() ? "" : " ", flops(peak));
  return detail;
}

Figure model_size(const Json& run) {
  std::string detail = text_of(run, "precision");
  if (const Json* layout = run.find("layout"); layout != nullptr && layout->is_object()) {
    const double ranks = number_of(*layout, "ranks");
    if (std::isfinite(ranks))
      detail += fmt::format("{}{:.0f} {}", detail.empty() ? "" : " · ", ranks,
                            ranks == 1 ? "rank" : "ranks");
  }
  return {"Parameters", count(number_of(run, "parameters")), detail};
}

}  // namespace

std::string text_of(const Json& record, std::string_view key) {
  const Json* value = record.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

double number_of(const Json& record, std::string_view key) {
  const Json* value = record.find(key);
  return value != nullptr && value->is_number() ? value->as_number()
                                                : std::numeric_limits<double>::quiet_NaN();
}

Status status_of(const RunHistory& history) {
  const std::optional<Json>& end = history.sessions.back().end;
  if (!end) return {"open", "no end in the log: still running or killed"};
  const std::string reason = text_of(*end, "reason");
  if (reason == "done") return {"done", "done"};
  if (reason == "signal") return {"stopped", "ended by a signal"};
  if (reason == "exit-interval") return {"stopped", "stopped by --exit-interval"};
  if (reason == "exit-duration") return {"stopped", "stopped by --exit-duration-in-mins"};
  const std::string text = text_of(*end, "text");
  return {"error", text.empty() ? "ended by an error" : "error: " + text};
}

std::vector<Figure> figures_of(const RunHistory& h) {
  const Json& run = h.sessions.back().run;
  const double planned = number_of(run, "train_iters"), peak = number_of(run, "peak_flops");
  const double batch = h.steps.last(kBatchSize), length = number_of(run, "seq_length");
  const double speed = h.median_tokens_per_second;
  return {
      training_loss(h),
      best_validation(h),
      {"Iterations", grouped(h.last_iteration),
       planned > 0 ? fmt::format("of {}", grouped(static_cast<int64_t>(std::fmin(planned, 1e18))))
                   : ""},
      {"Tokens", count(h.steps.last_finite(kTokens)),
       std::isfinite(batch * length)
           ? fmt::format("{} a step",
                         grouped(static_cast<int64_t>(std::fmin(batch * length, 1e18))))
           : ""},
      {"Tokens/s", rate_text(speed),
       std::isfinite(h.overall_tokens_per_second)
           ? fmt::format("median step · {} overall, with evaluation, saves and logging",
                         rate_text(h.overall_tokens_per_second))
           : "median step"},
      {"Of measured peak", percent(h.median_peak_share),
       peak_detail(h.median_flops_per_second, peak)},
      running_time(h),
      model_size(run),
  };
}

}  // namespace megatron::report
