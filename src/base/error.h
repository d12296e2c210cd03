// Errors. There is one tool for each of three kinds of failure: MG_CHECK and fail() for those that
// a user can cause (flags, files, shapes), MG_ASSERT for those that only a defect of this program
// can cause, std::optional for expected ones.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace megatron {

// An error that a user can cause and fix. The text names the value, the limit and what to change.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A broken invariant: a defect of this program.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::vformat(format, fmt::make_format_args(args...)));
}

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace megatron

// MG_CHECK(condition, "format", args...): throws Error if the condition does not hold.
#define MG_CHECK(condition, ...)     \
  do {                               \
    if (!(condition)) [[unlikely]]   \
      ::megatron::fail(__VA_ARGS__); \
  } while (false)

// MG_ASSERT(condition): throws InternalError if the condition does not hold; in every build type.
#define MG_ASSERT(condition)                                        \
  do {                                                              \
    if (!(condition)) [[unlikely]]                                  \
      ::megatron::assertion_failed(#condition, __FILE__, __LINE__); \
  } while (false)
