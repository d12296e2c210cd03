// Objects that templates meet: namespaces, macros, loops, and the functions that are always there.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jinja/ast.h"
#include "jinja/call.h"
#include "jinja/scope.h"

namespace megatron::jinja {

struct Namespace : Object {
  std::string type_name() const override { return "Namespace"; }
  std::optional<Value> inner() const override;
  std::optional<Value> attribute(std::string_view name) const override;
  void set(const std::string& name, Value value);  // names that begin with _ are refused

  std::vector<std::pair<std::string, Value>> members;
};

struct Macro : Object {
  std::string type_name() const override { return "jinja2.runtime.Macro"; }
  std::string shown() const override { return "<Macro '" + statement->text + "'>"; }
  std::optional<Value> attribute(std::string_view name) const override;
  bool callable() const override { return true; }
  Value call(Call& call) override;

  const Statement* statement = nullptr;  // of kind macro or call
  std::shared_ptr<Scope> scope;          // where it was defined
};

// The variable `loop`.
struct Loop : Object, std::enable_shared_from_this<Loop> {
  Loop(Values loop_elements, int nesting);
  std::string type_name() const override { return "jinja2.runtime.LoopContext"; }
  std::string shown() const override;
  std::optional<Value> attribute(std::string_view name) const override;
  bool callable() const override { return recursive != nullptr; }
  Value call(Call& call) override;  // a recursive loop over other elements

  Values elements;
  int64_t index = 0;                     // from 0
  int level;                             // of recursion, from 0
  std::optional<Values> last_seen;       // by changed(); emptied when the loop ends
  const Statement* recursive = nullptr;  // the loop's statement
  std::shared_ptr<Scope> scope;          // round the loop
};

std::vector<std::pair<std::string, Value>> standard_functions();

}  // namespace megatron::jinja
