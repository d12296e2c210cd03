// Settings of traces: steps, ranks and output (docs/profile.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"

namespace megatron::settings {

struct ProfileSettings {
  bool profile = false;
  // Number of steps done before the first traced step, and at the end of the last one: 10 and 12
  // trace iterations 11 and 12.
  int64_t step_start = 10, step_end = 12;
  std::vector<std::string> ranks;  // empty: rank 0
  std::optional<std::string> directory;

  void fields(Fields& fields);
  void check(int rank_count) const;  // throws Error naming the flag
  bool traces(int rank) const;       // after check()
};

}  // namespace megatron::settings
