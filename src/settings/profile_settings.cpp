#include "settings/profile_settings.h"

#include <algorithm>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::settings {
namespace {

int parse_rank(const std::string& text, int rank_count) {
  const int rank = parse_number<int>(text).value_or(-1);
  MG_CHECK(rank >= 0 && rank < rank_count,
           "--profile-ranks has '{}'; the ranks of this run are 0 to {}", text, rank_count - 1);
  return rank;
}

}  // namespace

void ProfileSettings::fields(Fields& f) {
  const auto profiled = [this] { return profile ? "" : "--profile is not given"; };
  f.begin_group("logging");
  f.add_switch(
      "profile", &profile, true,
      "write a trace of some steps for chrome://tracing or ui.perfetto.dev: layers, kernels, "
      "communication");
  f.add("profile-step-start", &step_start,
        "number of steps before the first traced one: 10 starts at iteration 11")
      .of(profiled);
  f.add("profile-step-end", &step_end, "the last iteration to trace").of(profiled);
  f.add("profile-ranks", &ranks, "ranks to trace, one file each; default rank 0").of(profiled);
  f.add("profile-dir", &directory,
        "folder for the traces; default the --save folder, else the current one");
}

void ProfileSettings::check(int rank_count) const {
  MG_CHECK(step_start >= 0, "--profile-step-start is {}; it cannot be negative", step_start);
  MG_CHECK(!profile || step_end > step_start,
           "--profile-step-end is {} and --profile-step-start {}, which leaves no step to trace: "
           "tracing starts at step {}",
           step_end, step_start, step_start + 1);
  MG_CHECK(!directory || !directory->empty(), "--profile-dir is empty; give the name of a folder");
  for (const std::string& rank : ranks) parse_rank(rank, rank_count);
}

bool ProfileSettings::traces(int rank) const {
  if (!profile) return false;
  if (ranks.empty()) return rank == 0;
  return std::ranges::any_of(
      ranks, [rank](const std::string& text) { return parse_rank(text, INT32_MAX) == rank; });
}

}  // namespace megatron::settings
