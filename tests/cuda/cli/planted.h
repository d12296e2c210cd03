// Settings of the stand-in for CUDA (cuda_shim/control.h) by environment variables.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace megatron::testing {

// Sets a variable for programs that start during its lifetime.
class Planted {
 public:
  Planted(std::string variable, const std::string& value) : variable_(std::move(variable)) {
    if (const char* const before = std::getenv(variable_.c_str())) before_ = before;
    ::setenv(variable_.c_str(), value.c_str(), 1);
  }
  ~Planted() {
    if (before_) ::setenv(variable_.c_str(), before_->c_str(), 1);
    else ::unsetenv(variable_.c_str());
  }
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;

 private:
  const std::string variable_;
  std::optional<std::string> before_;  // restored for other tests of this program
};

}  // namespace megatron::testing
