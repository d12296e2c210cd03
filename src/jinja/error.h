#pragma once

#include <string>

#include "base/error.h"

namespace megatron::jinja {

// What is wrong in a template or went wrong in rendering it; what() names template and line too.
class TemplateError : public Error {
 public:
  TemplateError(const std::string& name, int line, const std::string& reason, bool raised = false)
      : Error(fmt::format("template {}, line {}: {}", name, line, reason)),
        reason_(reason),
        line_(line),
        raised_(raised) {}

  const std::string& reason() const { return reason_; }
  int line() const { return line_; }
  bool raised() const { return raised_; }  // by the template itself: raise_exception()

 private:
  std::string reason_;
  int line_;
  bool raised_;
};

// Thrown by raise_exception(); it becomes a TemplateError where the line is known.
class Raised : public Error {
 public:
  using Error::Error;
};

}  // namespace megatron::jinja
