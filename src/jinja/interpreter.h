// Runs a parsed template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/ast.h"
#include "jinja/budget.h"
#include "jinja/objects.h"
#include "jinja/template.h"

namespace megatron::jinja {

class Interpreter {
 public:
  Interpreter(std::string name, const Variables& variables, const Limits& limits);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Rendering render(const Body& body);

  // Called by filters, tests and functions.
  Value filter(std::string_view name, Values positional, Keywords keyword);
  bool test(std::string_view name, Values positional, Keywords keyword);
  Value call_macro(const Macro& macro, Call& call);
  Value call_loop(const Loop& loop, const Value& elements);
  // Registers a namespace. A namespace may contain itself, so the interpreter empties all of them
  // at the end.
  void keep(std::shared_ptr<Namespace> object);

 private:
  enum class Flow { on, leave, next };
  class InScope;
  class At;

  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow run_condition(const Statement& statement);
  Flow run_for(const Statement& statement);
  Flow run_loop(const Statement& statement, Values elements, int64_t level);
  void keep_scope();
  Flow run_captured(const Statement& statement);
  Flow run_with(const Statement& statement);
  void run_call(const Statement& statement);
  void run_generation(const Statement& statement);
  Values selected(const Statement& statement, Values elements);
  void assign(const Target& target, const Value& value);
  void bind_extra_arguments(const Macro& macro, Call& call, size_t used);
  std::shared_ptr<Macro> make_macro(const Statement& statement);
  template <class Run>
  std::string capture(Run run);  // returns what `run` writes
  void write(std::string_view text);

  Value evaluate(const Expression& expression);
  Value evaluate_kind(const Expression& expression);
  Value evaluate_or_none(const ExpressionPtr& expression);
  Value evaluate_name(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_call(const Expression& expression, Value caller = Value());
  Value evaluate_compare(const Expression& expression);
  Value evaluate_conditional(const Expression& expression);
  Value evaluate_concatenation(const Expression& expression);
  Values evaluate_all(const std::vector<ExpressionPtr>& expressions);
  Call evaluate_arguments(const Expression& expression);

  std::string name_;
  Budget budget_;
  std::shared_ptr<Scope> scope_;
  std::string root_;           // rendered text
  std::string* out_ = &root_;  // or text that a block captures
  Budget::Held out_held_;
  // The current statement; after an error, the one that failed.
  const Statement* statement_ = nullptr;
  const Expression* expression_ = nullptr;  // current expression in it; null: the statement itself
  std::vector<std::pair<int64_t, int64_t>> generation_;
  size_t counted_bytes_ = 0;  // bytes of root_ whose code points have been counted
  int64_t counted_ = 0;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Scope>> captured_scopes_;  // scopes that macros and loops capture
  Budget::Held kept_;
};

}  // namespace megatron::jinja
