// Jinja templates as chat templates use them: what jinja2's immutable sandbox renders with
// trim_blocks, lstrip_blocks, loop controls and the tag `generation`. Left out: templates of
// several files (include, import, extends, block), autoescape, the filters random, urlize, pprint,
// xmlattr, striptags and filesizeformat, integers beyond 64 bits, marks of safe text that spread by
// more than `+` and changes of case.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/budget.h"
#include "jinja/error.h"
#include "jinja/value.h"

namespace megatron::jinja {

struct Rendering {
  std::string text;
  // What stood in blocks {% generation %}: first code point and the one behind the last.
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

  // Throws TemplateError naming template and line; its reason() is what raise_exception was given,
  // or Python's words. The functions range, dict, namespace, cycler, joiner and raise_exception are
  // there always; a variable of that name hides one.
  Rendering render(const Variables& variables, const Limits& limits = {}) const;
  bool reads(const std::string& variable) const;  // whether it stands anywhere in the template

 private:
  struct Impl;
  explicit Template(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace megatron::jinja
