// Values with behaviour (functions, macros, namespaces and loops), the arguments of calls, and the
// scopes of variables.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/value.h"

namespace megatron::jinja {

struct Statement;
using Keywords = std::vector<std::pair<std::string, Value>>;

struct Call {
  Interpreter& interpreter;
  Budget& budget;
  Values positional;  // the first one of a filter, test or method is its subject
  Keywords keyword = {};
};

using Native = Value (*)(Call& call);

// Binds the arguments of a call to named parameters. Throws Error, in Python's words, if one is
// missing, given twice or unknown.
class Parameters {
 public:
  Parameters(const Call& call, std::string_view function,
             std::initializer_list<std::string_view> names, size_t required);

  // Null if the argument was omitted.
  const Value* operator[](size_t i) const { return values_[i]; }
  bool given(size_t i) const { return values_[i] != nullptr; }
  bool given_and_not_none(size_t i) const { return given(i) && !values_[i]->is_none(); }
  bool flag(size_t i, bool initial) const { return given(i) ? values_[i]->truth() : initial; }
  int64_t whole(size_t i, int64_t initial) const;
  const std::string& text(size_t i) const;  // throws Error if it is not text
  std::string text(size_t i, std::string_view initial) const {
    return given(i) ? text(i) : std::string(initial);
  }

 private:
  std::string function_;
  std::vector<std::string> names_;
  std::vector<const Value*> values_;
};

// A native function, or a method bound to its value.
struct Function : Object {
  explicit Function(Native function, std::optional<Value> owner = std::nullopt,
                    Budget* budget = nullptr);
  std::string type_name() const override { return "builtin_function_or_method"; }
  bool callable() const override { return true; }
  Value call(Call& call) override;

  Native native;
  std::optional<Value> self;
  Budget::Held held;
};

// A block with a scope of its own (loop, macro, with, ...) sees the variables around it and sets
// only its own.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  const Value* find(std::string_view name, Budget& budget) const;
  void set(std::string_view name, Value value, Budget& budget);
};

struct Namespace : Object {
  std::string type_name() const override { return "Namespace"; }
  std::string shown(Budget& budget) const override;
  std::optional<Value> attribute(std::string_view name, Budget& budget) const override;
  void set(const std::string& name, Value value,
           Budget& budget);  // names that begin with _ are refused

  Scope members;
};

struct Macro : Object {
  std::string type_name() const override { return "Macro"; }
  std::string shown(Budget& budget) const override;
  std::optional<Value> attribute(std::string_view name, Budget& budget) const override;
  bool callable() const override { return true; }
  Value call(Call& call) override;

  const Statement* statement = nullptr;  // of kind macro or call
  std::shared_ptr<Scope> scope;          // where it was defined
};

// The variable `loop`. A recursive loop is called with the elements of the next level.
struct Loop : Object, std::enable_shared_from_this<Loop> {
  Loop(Values loop_elements, Budget& budget);
  std::string type_name() const override { return "LoopContext"; }
  std::string shown(Budget& budget) const override;
  std::optional<Value> attribute(std::string_view name, Budget& budget) const override;
  bool callable() const override { return true; }
  Value call(Call& call) override;

  Values elements;
  int64_t index = 0;                // from 0
  int64_t level = 0;                // nesting level of a recursive loop
  std::optional<Values> last_seen;  // by changed(); emptied when the loop ends
  const Statement* statement = nullptr;
  std::shared_ptr<Scope> scope;  // scope around a recursive loop
  Budget::Held held;
};

// range, dict, namespace, cycler, joiner, raise_exception.
Keywords standard_functions();
Value dict_from_keys(Call& call);

// Thrown by raise_exception(); converted to a TemplateError where the line is known.
class Raised : public Error {
 public:
  using Error::Error;
};

}  // namespace megatron::jinja
