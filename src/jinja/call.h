// What filters, tests, methods and functions are called with.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace megatron::jinja {

class Budget;

struct Call {
  Interpreter& interpreter;
  Budget& budget;
  Values positional;  // of a filter, a test or a method the first is what it is applied to
  std::vector<std::pair<std::string, Value>> keyword = {};
};

using Native = Value (*)(Call& call);

// The arguments of a call by the names of the parameters. Throws Error in Python's words where one
// is missing, given twice or unknown.
class Parameters {
 public:
  Parameters(const Call& call, std::string_view function,
             std::initializer_list<std::string_view> names, size_t required);

  // Null where the argument was left out.
  const Value* operator[](size_t i) const { return values_[i]; }
  bool given(size_t i) const { return values_[i] != nullptr; }
  bool given_and_not_none(size_t i) const { return given(i) && !values_[i]->is_none(); }
  bool flag(size_t i, bool initial) const { return given(i) ? values_[i]->truth() : initial; }
  int64_t whole(size_t i, int64_t initial) const;
  const std::string& text(size_t i) const;  // throws Error where it is no text
  std::string text(size_t i, std::string_view initial) const {
    return given(i) ? text(i) : std::string(initial);
  }

 private:
  std::string function_;
  std::vector<std::string> names_;
  std::vector<const Value*> values_;
};

// A function of this program.
struct Function : Object {
  Function(std::string function_name, Native function)
      : name(std::move(function_name)), native(function) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string shown() const override { return "<built-in function " + name + ">"; }
  bool callable() const override { return true; }
  Value call(Call& call) override { return native(call); }

  std::string name;
  Native native;
};

}  // namespace megatron::jinja
