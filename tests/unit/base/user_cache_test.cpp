#include "base/user_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

namespace megatron {
namespace {

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    if (value != nullptr) ::setenv(name, value, 1);
    else ::unsetenv(name);
  }
  ~Variable() {
    if (before_) ::setenv(name_, before_->c_str(), 1);
    else ::unsetenv(name_);
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

std::string directory(const char* cache, const char* home) {
  const Variable first("XDG_CACHE_HOME", cache), second("HOME", home);
  return user_cache_directory();
}

TEST(UserCache, IsWhereThePlatformHasIt) {
  EXPECT_EQ(directory("/var/cache/me", "/home/me"), "/var/cache/me/megatron");
  EXPECT_EQ(directory(nullptr, "/home/me"), "/home/me/.cache/megatron");
  EXPECT_EQ(directory("", "/home/me"), "/home/me/.cache/megatron");
  EXPECT_EQ(directory("relative", "/home/me"), "/home/me/.cache/megatron");
  EXPECT_EQ(directory(nullptr, nullptr), "");
  EXPECT_EQ(directory(nullptr, "relative"), "");
}

}  // namespace
}  // namespace megatron
