#include "training/log/console.h"

#include <fmt/core.h>

#include <cmath>

#include "base/progress.h"
#include "training/finite.h"

namespace megatron::training {
namespace {

enum class Style { scientific, three, four, one, whole };

std::string figure(double value, Style style) {
  if (!std::isfinite(value)) return "n/a";
  switch (style) {
    case Style::scientific: return fmt::format("{:.6E}", value);
    case Style::four: return fmt::format("{:.4f}", value);
    case Style::three: return fmt::format("{:.3f}", value);
    case Style::one: return fmt::format("{:.1f}", value);
    case Style::whole: return fmt::format("{:.0f}", value);
  }
  return {};
}

// A loss is known also where it is NaN or infinite.
std::string loss_figure(double loss) {
  return std::isfinite(loss) ? figure(loss, Style::scientific)
                             : fmt::format("{}", unsigned_nan(loss));
}

std::string percent(double share) {
  return std::isfinite(share) && share >= 0 ? figure(100 * share, Style::one) + "%" : "n/a";
}

// Control characters as in C; those of U+0080 to U+009F too, which terminals may obey.
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

std::string console_line(const StepRecord& r, const RunRecord& run) {
  std::string scaling;
  if (r.loss_scale != 0)
    scaling = fmt::format("loss scale: {} | ", figure(r.loss_scale, Style::one));
  std::string weights;
  if (r.parameter_norm != 0)
    weights = fmt::format("params norm: {} | ", figure(r.parameter_norm, Style::three));
  std::string skipped;
  if (r.loss_scale != 0 || r.skipped > 0)
    skipped = fmt::format("number of skipped iterations: {} | ", r.skipped);
  return fmt::format(
      "iteration {:>6}/{} | consumed samples: {} | elapsed time per iteration (ms): {} | "
      "learning rate: {} | global batch size: {} | lm loss: {} | {}grad norm: {} | {}{}tokens/s: "
      "{} | "
      "TFLOP/s (model): {} | {} of {} GEMM peak | data wait: {} | time left: {}",
      r.iteration, run.train_iters, r.consumed_samples, figure(1000 * r.seconds, Style::one),
      figure(r.learning_rate, Style::scientific), r.global_batch_size, loss_figure(r.loss), scaling,
      figure(r.gradient_norm, Style::three), weights, skipped,
      figure(r.tokens_per_second, Style::whole), figure(r.flops_per_second * 1e-12, Style::four),
      percent(r.peak_share), run.precision, percent(r.data_wait),
      std::isfinite(r.seconds_left) && r.seconds_left >= 0 ? format_duration(r.seconds_left)
                                                           : "n/a");
}

std::string console_line(const ValidationRecord& r) {
  return fmt::format("validation loss at iteration {}{} | lm loss value: {} | lm loss PPL: {}",
                     r.iteration, r.set.empty() || r.set == "valid" ? "" : " on " + r.set,
                     loss_figure(r.loss), loss_figure(perplexity(r.loss)));
}

std::string console_line(const SampleRecord& r) {
  return fmt::format("sample at iteration {} | prompt: {} | text: {}", r.iteration,
                     in_one_line(r.prompt), in_one_line(r.text));
}

}  // namespace megatron::training
