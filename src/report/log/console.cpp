#include "report/log/console.h"

#include <fmt/core.h>

#include <cmath>
#include <vector>

#include "base/progress.h"
#include "tensor/finite.h"

namespace megatron::report {
namespace {

// Formats a figure; n/a if it is not finite.
std::string figure(std::string_view format, double value) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "n/a";
}

// Three decimals, or "1.234e+30" for a norm that has exploded or vanished, so that there is room
// for the line's other figures.
std::string norm_text(double norm) {
  const bool plain = norm == 0 || (norm >= 1e-3 && norm < 1e5);
  return figure(plain ? "{:.3f}" : "{:.3e}", norm);
}

// Four decimals, or scientific notation where these would not be informative. NaN and infinite
// losses are also shown.
std::string loss_text(double loss) {
  if (!std::isfinite(loss)) return fmt::format("{}", unsigned_nan(loss));
  const double size = std::abs(loss);
  const bool plain = size == 0 || (size >= 0.01 && size < 1e5);
  return plain ? fmt::format("{:.4f}", loss) : fmt::format("{:.4e}", loss);
}

std::string scientific_loss(double loss) {
  return std::isfinite(loss) ? fmt::format("{:.6E}", loss) : fmt::format("{}", unsigned_nan(loss));
}

std::string percent(double share) { return share >= 0 ? figure("{:.1f}%", 100 * share) : "n/a"; }

std::string rate(double per_second) {
  if (!std::isfinite(per_second)) return "n/a";
  if (per_second < 999999.5) return fmt::format("{:.0f}", per_second);
  return per_second < 1e15 ? format_count(per_second) : fmt::format("{:.2e}", per_second);
}

// Escapes control characters as in C, including U+0080 to U+009F, which terminals may interpret.
std::string in_one_line(const std::string& text) {
  const std::string good = readable(text);
  std::string out;
  for (size_t i = 0; i < good.size(); ++i) {
    const auto byte = static_cast<unsigned char>(good[i]);
    const auto next = static_cast<unsigned char>(i + 1 < good.size() ? good[i + 1] : 0);
    if (good[i] == '\n') {
      out += "\\n";
    } else if (good[i] == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (byte == 0xc2 && next < 0xa0) {
      out += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      out += good[i];
    }
  }
  return out;
}

}  // namespace

namespace {

// Formats "expert_load 1.4 (2.31 layer 17)": the value of all layers, and that of the outstanding
// one.
std::string metric_text(const MetricValue& m) {
  const MetricValue::Layer* layer = m.outstanding();
  const std::string text =
      in_one_line(m.name) + " " + figure(m.layers.empty() ? "{:.4g}" : "{:.3g}", m.value);
  if (layer == nullptr) return text;
  return fmt::format("{} ({} layer {})", text, figure("{:.3g}", layer->value), layer->layer);
}

using Parts = std::vector<std::string>;

constexpr std::string_view kBetween = " | ", kIndent = "   ";

size_t width_of(const Parts& parts) {
  size_t width = 0;
  for (const std::string& part : parts) width += kBetween.size() + part.size();
  return width;
}

// Separate lines, below that of the step.
std::string lines_below(const Parts& parts) {
  std::string text;
  size_t width = kConsoleColumns;  // of the last figure
  for (const std::string& part : parts) {
    const bool fits = width + kBetween.size() + part.size() <= kConsoleColumns;
    const std::string added = fmt::format("{}{}", fits ? kBetween : kIndent, part);
    text += fits ? added : "\n" + added;
    width = added.size() + (fits ? width : 0);
  }
  return text;
}

// Figures of a step that are dropped if the line is full, in order of decreasing priority.
Parts lesser_figures(const StepRecord& r, const Parts& metrics) {
  Parts parts;
  if (r.skipped > 0) parts.push_back(fmt::format("{} skipped", r.skipped));
  parts.insert(parts.end(), metrics.begin(), metrics.end());
  if (r.loss_scale != 0) parts.push_back("loss scale " + figure("{:.10g}", r.loss_scale));
  if (r.parameter_norm != 0) parts.push_back("params norm " + norm_text(r.parameter_norm));
  if (r.zero_gradients >= 0) parts.push_back(fmt::format("{} zeros", r.zero_gradients));
  parts.push_back("lr " + figure("{:.2e}", r.learning_rate));
  parts.push_back("grad norm " + norm_text(r.gradient_norm));
  if (r.peak_share >= 0) parts.push_back(percent(r.peak_share) + " of peak");
  parts.push_back(figure("{:.4g}", r.flops_per_second * 1e-12) + " TFLOP/s");
  parts.push_back(figure("{:.1f}", 1000 * r.seconds) + " ms a step");
  parts.push_back(fmt::format("batch {}", r.global_batch_size));
  parts.push_back("data wait " + percent(r.data_wait));
  parts.push_back(fmt::format("{} samples", r.consumed_samples));
  return parts;
}

}  // namespace

std::string console_line(const StepRecord& r, const RunRecord& run) {
  std::string line = fmt::format("iteration {:>6}/{} | loss {} | {} tokens/s", r.iteration,
                                 run.train_iters, loss_text(r.loss), rate(r.tokens_per_second));
  if (r.overall_tokens_per_second > 0)
    line += fmt::format(" ({} in all)", rate(r.overall_tokens_per_second));
  line += fmt::format(" | {} left", std::isfinite(r.seconds_left) && r.seconds_left >= 0
                                        ? format_duration(r.seconds_left)
                                        : "n/a");
  Parts metrics;
  for (const MetricValue& m : r.metrics) metrics.push_back(metric_text(m));
  const bool fit = line.size() + width_of(metrics) <= kConsoleColumns;
  for (const std::string& part : lesser_figures(r, fit ? metrics : Parts())) {
    if (line.size() + kBetween.size() + part.size() > kConsoleColumns) break;
    line += std::string(kBetween) + part;
  }
  return fit ? line : line + lines_below(metrics);
}

std::string closing_line(const RunTotals& t, const RunRecord& run) {
  const auto share = [&](double seconds) { return percent(seconds / t.seconds); };
  const double flops = t.flops / t.step_seconds;
  const std::string of_peak =
      run.peak_flops > 0
          ? fmt::format(", {} of {} GEMM peak", percent(flops / run.peak_flops), run.precision)
          : "";
  return fmt::format(
      "trained {} step{}, {} tokens in {}: {} tokens/s in steps ({} TFLOP/s{}), {} overall; {} of "
      "the time in steps, {} in evaluation, {} saving checkpoints",
      t.steps, t.steps == 1 ? "" : "s", format_count(static_cast<double>(t.tokens)),
      t.seconds < 10 ? fmt::format("{:.2f}s", t.seconds) : format_duration(t.seconds),
      rate(t.tokens_per_second()), figure("{:.4g}", flops * 1e-12), of_peak,
      rate(t.overall_tokens_per_second()), share(t.step_seconds), share(t.evaluation_seconds),
      share(t.save_seconds));
}

std::string console_line(const ValidationRecord& r) {
  std::string line = fmt::format("validation loss at iteration {}{} | {} value: {}", r.iteration,
                                 r.set.empty() || r.set == "valid" ? "" : " on " + r.set,
                                 r.of_objective ? "loss" : "lm loss", scientific_loss(r.loss));
  if (!r.of_objective)
    line += fmt::format(" | lm loss PPL: {}", scientific_loss(perplexity(r.loss)));
  for (const ValidationRecord::Metric& metric : r.metrics)
    line += fmt::format(" | {} {:.4g}", metric.name, metric.value);
  return line;
}

std::string console_line(const SampleRecord& r) {
  return fmt::format("sample at iteration {} | prompt: {} | text: {}", r.iteration,
                     in_one_line(r.prompt), in_one_line(r.text));
}

}  // namespace megatron::report
