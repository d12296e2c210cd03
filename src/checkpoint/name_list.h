// Lists of names for error messages.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "base/error.h"

namespace megatron::checkpoint {

inline constexpr size_t kListedNames = 10;

// Formats "3 (a, b, c)"; of more than ten names only the first ten: "12 (a, b, ..., j and 2 more)".
inline std::string counted(std::span<const std::string> names) {
  std::string text = fmt::format("{} (", names.size());
  const size_t listed = std::min(names.size(), kListedNames);
  for (size_t i = 0; i < listed; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > listed) text += fmt::format(" and {} more", names.size() - listed);
  return text + ")";
}

}  // namespace megatron::checkpoint
