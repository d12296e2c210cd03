// Jinja as chat templates use it: what jinja2's immutable sandbox renders with trim_blocks,
// lstrip_blocks, loop controls and the tag `generation`. Tags are implemented in parser.cpp,
// filters in *_filters.cpp, tests in tests.cpp, methods in text_methods.cpp and members.cpp;
// anything else is refused by its name. Integers have up to 4300 digits. Texts are not marked as
// safe HTML.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/value.h"

namespace megatron::jinja {

// An error in a template or in rendering it. what() also names the template, the line and the
// construct ("filter 'int'", "{% for %}").
class TemplateError : public Error {
 public:
  TemplateError(const std::string& name, int line, const std::string& reason, bool raised = false,
                const std::string& construct = "")
      : Error(fmt::format("template {}, {}: {}", name, place(line, construct), reason)),
        reason_(reason),
        place_(place(line, construct)),
        line_(line),
        raised_(raised) {}

  const std::string& reason() const { return reason_; }
  const std::string& place() const { return place_; }  // "line 3, filter 'int'"
  int line() const { return line_; }
  // True if the template raised the error itself, by raise_exception().
  bool raised() const { return raised_; }

 private:
  static std::string place(int line, const std::string& construct) {
    return fmt::format("line {}{}{}", line, construct.empty() ? "" : ", ", construct);
  }

  std::string reason_, place_;
  int line_;
  bool raised_;
};

struct Rendering {
  std::string text;
  // Output of {% generation %} blocks, as code point ranges [begin, end).
  std::vector<std::pair<int64_t, int64_t>> generation;
};

using Variables = std::vector<std::pair<std::string, Value>>;

// May be rendered by many threads at once.
class Template {
 public:
  // name: for error messages. Throws TemplateError.
  static Template parse(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // Throws TemplateError naming template and line; its reason() is the argument of raise_exception,
  // or Python's message. The functions of standard_functions() (objects.h) are always available; a
  // variable of the same name hides one.
  Rendering render(const Variables& variables, const Limits& limits = {}) const;
  bool reads(const std::string& variable) const;  // whether it occurs in the template
  bool marks_generation() const;                  // whether it has {% generation %}

 private:
  struct Impl;
  explicit Template(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace megatron::jinja
