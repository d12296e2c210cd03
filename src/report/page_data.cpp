#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "report/figures.h"
#include "report/markup.h"
#include "report/page.h"

namespace megatron::report {
namespace {

struct Column {
  std::string_view name;
  StepColumn index;
  int digits;
};
constexpr std::array<Column, 12> kColumns = {{
    {"iteration", kIteration, 16},
    {"elapsed", kElapsed, 8},
    {"tokens", kTokens, 16},
    {"loss", kLoss, 7},
    {"learning_rate", kLearningRate, 6},
    {"gradient_norm", kGradientNorm, 5},
    {"tokens_per_second", kTokensPerSecond, 5},
    {"flops_per_second", kFlopsPerSecond, 4},
    {"peak_share", kPeakShare, 4},
    {"data_wait", kDataWait, 3},
    {"communication_wait", kCommunicationWait, 3},
    {"save_wait", kSaveWait, 3},
}};

std::string step_columns(const Curve& steps) {
  std::string result = "{";
  for (const Column& c : kColumns)
    result += fmt::format("{}\"{}\":{}", result.size() > 1 ? "," : "", c.name,
                          script_numbers(steps.column(c.index), c.digits));
  return result + fmt::format(",\"rows\":{}}}", steps.column(kIteration).size());
}

// Values to smooth for a thinned run: the means of the buckets, not their extremes.
std::string mean_columns(const Curve& steps) {
  if (!steps.thinned()) return "null";
  std::string result = "{";
  for (const Column& c : kColumns)
    result += fmt::format("{}\"{}\":{}", result.size() > 1 ? "," : "", c.name,
                          script_numbers(steps.means(c.index), std::min(c.digits, 8)));
  return result + fmt::format(",\"rows\":{}}}", steps.means(kIteration).size());
}

std::string validation_curves(const RunHistory& history) {
  std::string result = "[";
  for (const ValidationCurve& v : history.validations) {
    const std::vector<double> iterations = v.curve.column(kValidationIteration);
    result += fmt::format(
        "{}{{\"set\":{},\"rows\":{},\"iteration\":{},\"elapsed\":{},\"loss\":{}}}",
        result.size() > 1 ? "," : "", script_string(v.set), iterations.size(),
        script_numbers(iterations, 16), script_numbers(v.curve.column(kValidationElapsed), 8),
        script_numbers(v.curve.column(kValidationLoss), 7));
  }
  return result + "]";
}

std::string list(const std::vector<double>& values) {
  std::string result = "[";
  for (const double v : values) result += fmt::format("{}{:.0f}", result.size() > 1 ? "," : "", v);
  return result + "]";
}

std::string one_run(const RunHistory& history) {
  std::vector<double> restarts, saves;
  for (size_t i = 1; i < history.sessions.size(); ++i)
    if (const Session& s = history.sessions[i]; s.trained)
      restarts.push_back(static_cast<double>(s.iteration));
  for (const Json& r : history.saves.kept)
    if (const double at = number_of(r, "iteration"); at >= 0 && at < 1e15) saves.push_back(at);
  return fmt::format(
      "{{\"name\":{},\"seen\":{},\"steps\":{},\"means\":{},\"validations\":{},\"restarts\":{},"
      "\"saves\":{}}}",
      script_string(history.name), history.steps.seen(), step_columns(history.steps),
      mean_columns(history.steps), validation_curves(history), list(restarts), list(saves));
}

}  // namespace

std::string curve_data(const std::vector<RunHistory>& histories) {
  std::string result = "[";
  for (const RunHistory& h : histories) {
    if (result.size() > 1) result += ",\n";
    result += one_run(h);
  }
  return result + "]";
}

}  // namespace megatron::report
