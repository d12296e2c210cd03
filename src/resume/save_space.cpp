#include "resume/save_space.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/progress.h"

namespace megatron::resume {
namespace {

// Multiples of `interval` in (first, last].
int64_t multiples(int64_t interval, int64_t first, int64_t last) {
  return last / interval - first / interval;
}

}  // namespace

int64_t most_checkpoints(const settings::CheckpointSettings& s, int64_t first, int64_t last) {
  if (s.exit_interval) last = std::min(last, (first / *s.exit_interval + 1) * *s.exit_interval);
  if (last <= first) return 0;
  const int64_t interval = s.save_interval.value_or(last);
  // The last step is always saved.
  const int64_t saves = multiples(interval, first, last) + (last % interval == 0 ? 0 : 1);
  if (!s.removes_old()) return saves;
  const int64_t kept = s.save_keep.value_or(1);
  const int64_t retained =
      s.save_retain_interval ? multiples(*s.save_retain_interval, first, last) : 0;
  return std::min(saves, std::min(saves, kept) + 1 + retained);
}

std::string SaveSpace::text() const {
  const auto bytes = [](double count) { return format_bytes(count); };
  const std::string figures =
      fmt::format("{} {} of {} each", checkpoints, checkpoints == 1 ? "checkpoint" : "checkpoints",
                  bytes(static_cast<double>(checkpoint_bytes)));
  if (fits()) {
    return fmt::format("--save {}: at most {}, {} in all; {} are free on its disk", folder, figures,
                       bytes(needed_bytes()), bytes(static_cast<double>(free_bytes)));
  }
  return fmt::format(
      "--save {}: {} take {}, but only {} are free on its disk, enough for {}: use --save-keep, a "
      "larger --save-interval, or a --save on another disk",
      folder, figures, bytes(needed_bytes()), bytes(static_cast<double>(free_bytes)),
      free_bytes / std::max<int64_t>(1, checkpoint_bytes));
}

}  // namespace megatron::resume
