// Helpers for tests that check output, logs and errors.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"

namespace megatron::testing {

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Number of non-overlapping occurrences of `part`.
inline size_t count(std::string_view text, std::string_view part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
  return n;
}

inline void expect_contains(std::string_view text, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts) EXPECT_TRUE(has(text, part)) << "'" << part << "' in: " << text;
}

// Text of the Error that f throws. Empty if f does not throw.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace megatron::testing
