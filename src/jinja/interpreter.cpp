#include "jinja/interpreter.h"

#include <algorithm>
#include <exception>

#include "jinja/builtins.h"
#include "jinja/construct.h"
#include "jinja/conversions.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {

// Opens a new scope inside `parent` for its lifetime.
class Interpreter::InScope {
 public:
  InScope(Interpreter& interpreter, std::shared_ptr<Scope> parent)
      : interpreter_(interpreter), outer_(interpreter.scope_) {
    auto scope = std::make_shared<Scope>();
    scope->parent = std::move(parent);
    interpreter.scope_ = std::move(scope);
  }
  explicit InScope(Interpreter& interpreter) : InScope(interpreter, interpreter.scope_) {}
  ~InScope() { interpreter_.scope_ = std::move(outer_); }
  InScope(const InScope&) = delete;
  InScope& operator=(const InScope&) = delete;

  Scope& scope() { return *interpreter_.scope_; }

 private:
  Interpreter& interpreter_;
  std::shared_ptr<Scope> outer_;
};

// Marks the statement or expression that runs. If it fails, the mark stays.
class Interpreter::At {
 public:
  At(Interpreter& interpreter, const Statement& statement) : At(interpreter) {
    interpreter.statement_ = &statement;
    interpreter.expression_ = nullptr;
  }
  At(Interpreter& interpreter, const Expression& expression) : At(interpreter) {
    interpreter.expression_ = &expression;
  }
  ~At() {
    if (std::uncaught_exceptions() > exceptions_) return;
    interpreter_.statement_ = statement_;
    interpreter_.expression_ = expression_;
  }
  At(const At&) = delete;
  At& operator=(const At&) = delete;

 private:
  explicit At(Interpreter& interpreter)
      : interpreter_(interpreter),
        statement_(interpreter.statement_),
        expression_(interpreter.expression_) {}

  Interpreter& interpreter_;
  const Statement* statement_;
  const Expression* expression_;
  const int exceptions_ = std::uncaught_exceptions();
};

Interpreter::Interpreter(std::string name, const Variables& variables, const Limits& limits)
    : name_(std::move(name)),
      budget_(limits),
      scope_(std::make_shared<Scope>()),
      out_held_(&budget_, 0),
      kept_(&budget_, 0) {
  scope_->variables = standard_functions();
  auto given = std::make_shared<Scope>();
  given->variables = variables;
  given->parent = scope_;
  scope_ = std::make_shared<Scope>();
  scope_->parent = std::move(given);
}

Interpreter::~Interpreter() {
  // All of them are alive here, so that no chain of them is destroyed recursively.
  for (const auto& object : namespaces_) object->members.variables.clear();
  for (const auto& scope : captured_scopes_) scope->variables.clear();
}

Rendering Interpreter::render(const Body& body) {
  const auto line = [&] {
    return expression_ != nullptr  ? expression_->line
           : statement_ != nullptr ? statement_->line
                                   : 1;
  };
  try {
    execute(body);
  } catch (const Raised& error) {
    throw TemplateError(name_, line(), error.what(), true);
  } catch (const Error& error) {
    throw TemplateError(name_, line(), error.what(), false, construct_of(statement_, expression_));
  }
  return {std::move(root_), std::move(generation_)};
}

void Interpreter::keep(std::shared_ptr<Namespace> object) {
  kept_.grow(sizeof(Namespace) + sizeof(object));
  namespaces_.push_back(std::move(object));
}

// Keeps the current scope: it outlives its block, and it may be part of a reference cycle.
void Interpreter::keep_scope() {
  if (!captured_scopes_.empty() && captured_scopes_.back() == scope_) return;
  kept_.grow(sizeof(Scope) + sizeof(scope_) + scope_->variables.capacity() * 64);
  captured_scopes_.push_back(scope_);
}

void Interpreter::write(std::string_view text) {
  budget_.spend_bytes(text.size());
  budget_.check_length(out_->size() + text.size());
  out_held_.grow(text.size());
  out_->append(text);
}

template <class Run>
std::string Interpreter::capture(Run run) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  Budget::Held outer_held = std::exchange(out_held_, Budget::Held(&budget_, 0));
  try {
    run();
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  out_held_ = std::move(outer_held);
  return text;
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  const Budget::Level level(budget_);
  for (const Statement& statement : body) {
    const Flow flow = execute(statement);
    if (flow != Flow::on) return flow;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  budget_.spend(1);
  const At at(*this, statement);
  switch (statement.kind) {
    case Statement::Kind::text: write(statement.text); break;
    case Statement::Kind::output: {
      const Value value = evaluate(*statement.value);
      value.is_text() ? write(value.bytes()) : write(to_text(value, budget_));
      break;
    }
    case Statement::Kind::set: assign(statement.target, evaluate(*statement.value)); break;
    case Statement::Kind::set_block:
    case Statement::Kind::filter: return run_captured(statement);
    case Statement::Kind::condition: return run_condition(statement);
    case Statement::Kind::loop: return run_for(statement);
    case Statement::Kind::macro:
      scope_->set(statement.text, Value::object(make_macro(statement)), budget_);
      break;
    case Statement::Kind::call: run_call(statement); break;
    case Statement::Kind::with: return run_with(statement);
    case Statement::Kind::generation: run_generation(statement); break;
    case Statement::Kind::leave: return Flow::leave;
    case Statement::Kind::next: return Flow::next;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run_condition(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition == nullptr || evaluate(*branch.condition).truth())
      return execute(branch.body);
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run_captured(const Statement& statement) {
  Flow flow = Flow::on;
  Value value;
  {
    InScope inner(*this);
    std::string text = capture([&] { flow = execute(statement.body); });
    if (flow != Flow::on) return flow;
    inner.scope().set(kCaptured, Value::text(std::move(text), &budget_), budget_);
    value = evaluate(*statement.value);
  }
  if (statement.kind == Statement::Kind::set_block) {
    assign(statement.target, value);
  } else {
    write(to_text(value, budget_));
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run_with(const Statement& statement) {
  Values values;
  for (const Assignment& assignment : statement.assignments)
    values.push_back(evaluate(*assignment.value));
  InScope inner(*this);
  for (size_t i = 0; i < values.size(); ++i) assign(statement.assignments[i].target, values[i]);
  return execute(statement.body);
}

Values Interpreter::selected(const Statement& statement, Values elements) {
  if (statement.condition == nullptr) return elements;
  Values kept;
  for (Value& element : elements) {
    const InScope inner(*this);
    assign(statement.target, element);
    if (evaluate(*statement.condition).truth()) kept.push_back(std::move(element));
  }
  return kept;
}

Interpreter::Flow Interpreter::run_for(const Statement& statement) {
  const Value value = evaluate(*statement.value);
  return run_loop(statement, elements_of(value, budget_), 0);
}

Interpreter::Flow Interpreter::run_loop(const Statement& statement, Values elements,
                                        int64_t level) {
  const auto loop = std::make_shared<Loop>(selected(statement, std::move(elements)), budget_);
  loop->statement = &statement;
  loop->level = level;
  if (statement.recursive) {
    loop->scope = scope_;
    keep_scope();
  }
  struct Forget {  // values that changed() saw may contain the loop itself
    Loop& loop;
    ~Forget() { loop.last_seen.reset(); }
  } forget{*loop};
  for (size_t i = 0; i < loop->elements.size(); ++i) {
    budget_.spend(1);
    loop->index = static_cast<int64_t>(i);
    InScope inner(*this);
    inner.scope().set("loop", Value::object(loop), budget_);
    assign(statement.target, loop->elements[i]);
    if (execute(statement.body) == Flow::leave) return Flow::on;
  }
  if (!loop->elements.empty() || statement.otherwise.empty()) return Flow::on;
  const InScope inner(*this);
  execute(statement.otherwise);
  return Flow::on;
}

Value Interpreter::call_loop(const Loop& loop, const Value& elements) {
  const Budget::Level level(budget_);
  const InScope inner(*this, loop.scope);
  std::string text =
      capture([&] { run_loop(*loop.statement, elements_of(elements, budget_), loop.level + 1); });
  return Value::text(std::move(text), &budget_);
}

std::shared_ptr<Macro> Interpreter::make_macro(const Statement& statement) {
  auto macro = std::make_shared<Macro>();
  macro->statement = &statement;
  macro->scope = scope_;
  kept_.grow(sizeof(Macro));
  keep_scope();
  return macro;
}

void Interpreter::bind_extra_arguments(const Macro& macro, Call& call, size_t used) {
  const Statement& statement = *macro.statement;
  if (statement.reads_caller) {
    Value caller = Value::undefined("No caller defined");
    for (auto it = call.keyword.begin(); it != call.keyword.end(); ++it) {
      if (it->first != "caller") continue;
      caller = it->second;
      call.keyword.erase(it);
      break;
    }
    scope_->set("caller", std::move(caller), budget_);
  }
  if (statement.reads_kwargs) {
    std::vector<std::pair<Value, Value>> members;
    for (const auto& [name, value] : call.keyword) members.emplace_back(Value::text(name), value);
    scope_->set("kwargs", Value::dict(std::move(members), &budget_), budget_);
  } else if (!call.keyword.empty()) {
    const std::string& name = call.keyword[0].first;
    MG_CHECK(name != "caller",
             "macro '{}' was invoked with two values for the special caller argument. This is most "
             "likely a bug.",
             statement.text);
    fail("macro '{}' takes no keyword argument '{}'", statement.text, name);
  }
  if (statement.reads_varargs) {
    const auto first = call.positional.begin() + static_cast<std::ptrdiff_t>(used);
    scope_->set("varargs", Value::tuple(Values(first, call.positional.end()), &budget_), budget_);
  } else {
    MG_CHECK(used == call.positional.size(), "macro '{}' takes not more than {} argument(s)",
             statement.text, statement.parameters.size());
  }
}

Value Interpreter::call_macro(const Macro& macro, Call& call) {
  const Budget::Level level(budget_);
  const Statement& statement = *macro.statement;
  const InScope inner(*this, macro.scope);
  const size_t used = std::min(call.positional.size(), statement.parameters.size());
  for (size_t i = 0; i < statement.parameters.size(); ++i) {
    const Parameter& parameter = statement.parameters[i];
    if (i < used) {
      scope_->set(parameter.name, call.positional[i], budget_);
      continue;
    }
    budget_.spend_items(call.keyword.size());
    const auto named = std::find_if(call.keyword.begin(), call.keyword.end(),
                                    [&](const auto& pair) { return pair.first == parameter.name; });
    if (named != call.keyword.end()) {
      scope_->set(parameter.name, named->second, budget_);
      call.keyword.erase(named);
    } else if (parameter.initial != nullptr) {
      scope_->set(parameter.name, evaluate(*parameter.initial), budget_);
    } else {
      scope_->set(parameter.name,
                  Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name)),
                  budget_);
    }
  }
  bind_extra_arguments(macro, call, used);
  return Value::text(capture([&] { execute(statement.body); }), &budget_);
}

void Interpreter::run_call(const Statement& statement) {
  Value caller = Value::object(make_macro(statement));
  write(to_text(evaluate_call(*statement.value, std::move(caller)), budget_));
}

void Interpreter::run_generation(const Statement& statement) {
  std::string text;
  {
    const InScope inner(*this);
    text = capture([&] { execute(statement.body); });
  }
  counted_ += count_characters(std::string_view(root_).substr(counted_bytes_));
  counted_bytes_ = root_.size();
  generation_.emplace_back(counted_, counted_ + count_characters(text));
  write(text);
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.member.empty()) {
    const Value* owner = scope_->find(target.name, budget_);
    auto* space = owner != nullptr && owner->is_object()
                      ? dynamic_cast<Namespace*>(owner->as_object().get())
                      : nullptr;
    MG_CHECK(space != nullptr, "cannot assign attribute on non-namespace object");
    space->set(target.member, value, budget_);
    return;
  }
  if (!target.many) {
    scope_->set(target.name, value, budget_);
    return;
  }
  MG_CHECK(!value.is_number() && !value.is_none() && !value.is_object(),
           "cannot unpack non-iterable {} object", value.type_name());
  const Values parts = elements_of(value, budget_);
  MG_CHECK(parts.size() >= target.parts.size(), "not enough values to unpack (expected {}, got {})",
           target.parts.size(), parts.size());
  MG_CHECK(parts.size() == target.parts.size(), "too many values to unpack (expected {})",
           target.parts.size());
  for (size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i]);
}

Value Interpreter::filter(std::string_view name, Values positional, Keywords keyword) {
  const Budget::Level level(budget_);
  Call call{*this, budget_, std::move(positional), std::move(keyword)};
  return find_filter(name)(call);
}

bool Interpreter::test(std::string_view name, Values positional, Keywords keyword) {
  Call call{*this, budget_, std::move(positional), std::move(keyword)};
  return find_test(name)(call).truth();
}

// ---- expressions

Value Interpreter::evaluate(const Expression& expression) {
  const At at(*this, expression);
  const Budget::Level level(budget_);
  budget_.spend(1);
  return evaluate_kind(expression);
}

Value Interpreter::evaluate_kind(const Expression& expression) {
  const auto operand = [&](size_t i) { return evaluate(*expression.operands[i]); };
  switch (expression.kind) {
    case Expression::Kind::constant: return expression.constant;
    case Expression::Kind::name: return evaluate_name(expression);
    case Expression::Kind::list: return Value::list(evaluate_all(expression.operands), &budget_);
    case Expression::Kind::tuple: return Value::tuple(evaluate_all(expression.operands), &budget_);
    case Expression::Kind::dict: return evaluate_dict(expression);
    case Expression::Kind::attribute: return attribute_of(operand(0), expression.name, budget_);
    case Expression::Kind::element: {
      const Value value = operand(0);
      return element_of(value, operand(1), budget_);
    }
    case Expression::Kind::slice: {
      const Value value = operand(0);
      const Value begin = evaluate_or_none(expression.operands[1]);
      const Value end = evaluate_or_none(expression.operands[2]);
      return slice_of(value, begin, end, evaluate_or_none(expression.operands[3]), budget_);
    }
    case Expression::Kind::call: return evaluate_call(expression);
    case Expression::Kind::filter:
    case Expression::Kind::test: {
      Call call = evaluate_arguments(expression);
      if (expression.kind == Expression::Kind::filter)
        return filter(expression.name, std::move(call.positional), std::move(call.keyword));
      return Value::boolean(
          test(expression.name, std::move(call.positional), std::move(call.keyword)));
    }
    case Expression::Kind::negative: return negative(operand(0));
    case Expression::Kind::positive: return positive(operand(0));
    case Expression::Kind::negation: return Value::boolean(!operand(0).truth());
    case Expression::Kind::both: {
      Value left = operand(0);
      return left.truth() ? operand(1) : left;
    }
    case Expression::Kind::either: {
      Value left = operand(0);
      return left.truth() ? left : operand(1);
    }
    case Expression::Kind::compare: return evaluate_compare(expression);
    case Expression::Kind::calculate: {
      const Value left = operand(0);
      return calculate(expression.op, left, operand(1), budget_);
    }
    case Expression::Kind::concatenate: return evaluate_concatenation(expression);
    case Expression::Kind::conditional: return evaluate_conditional(expression);
  }
  return Value();
}

Value Interpreter::evaluate_or_none(const ExpressionPtr& expression) {
  return expression == nullptr ? Value() : evaluate(*expression);
}

Value Interpreter::evaluate_name(const Expression& expression) {
  const Value* found = scope_->find(expression.name, budget_);
  return found != nullptr ? *found
                          : Value::undefined(fmt::format("'{}' is undefined", expression.name));
}

Values Interpreter::evaluate_all(const std::vector<ExpressionPtr>& expressions) {
  Values values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& expression : expressions) values.push_back(evaluate(*expression));
  return values;
}

Value Interpreter::evaluate_dict(const Expression& expression) {
  std::vector<std::pair<Value, Value>> members;
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    const Value key = evaluate(*expression.operands[i]);
    check_hashable(key, budget_);
    insert_member(members, key, evaluate(*expression.operands[i + 1]), budget_);
  }
  return Value::dict(std::move(members), &budget_);
}

// The first positional argument is what a filter or a test is applied to.
Call Interpreter::evaluate_arguments(const Expression& expression) {
  Call call{*this, budget_, {}};
  if (expression.kind != Expression::Kind::call)
    call.positional.push_back(evaluate(*expression.operands[0]));
  for (const Argument& argument : expression.arguments) {
    Value value = evaluate(*argument.value);
    if (argument.stars == 1) {
      for (Value& element : elements_of(value, budget_))
        call.positional.push_back(std::move(element));
    } else if (argument.stars == 2) {
      MG_CHECK(value.is_dict(), "argument after ** must be a mapping, not {}", value.type_name());
      for (const auto& [key, member] : value.as_dict().members) {
        MG_CHECK(key.is_text(), "keywords must be strings");
        call.keyword.emplace_back(key.bytes(), member);
      }
    } else if (!argument.keyword.empty()) {
      call.keyword.emplace_back(argument.keyword, std::move(value));
    } else {
      call.positional.push_back(std::move(value));
    }
  }
  return call;
}

Value Interpreter::evaluate_call(const Expression& expression, Value caller) {
  const Value callee = evaluate(*expression.operands[0]);
  Call call = evaluate_arguments(expression);
  if (caller.is_object()) call.keyword.emplace_back("caller", std::move(caller));
  check_defined(callee);
  MG_CHECK(callee.is_object() && callee.as_object()->callable(), "'{}' object is not callable",
           callee.type_name());
  const Budget::Level level(budget_);
  return callee.as_object()->call(call);
}

Value Interpreter::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  for (const Comparison& comparison : expression.comparisons) {
    Value right = evaluate(*comparison.right);
    if (!compared(comparison.order, left, right, budget_)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_concatenation(const Expression& expression) {
  std::string text;
  for (const Value& part : evaluate_all(expression.operands)) {
    const std::string shown = part.is_text() ? "" : to_text(part, budget_);
    const std::string& bytes = part.is_text() ? part.bytes() : shown;
    budget_.check_length(text.size() + bytes.size());
    budget_.check_memory(text.size() + bytes.size());
    text += bytes;
  }
  budget_.spend_bytes(text.size());
  return Value::text(std::move(text), &budget_);
}

Value Interpreter::evaluate_conditional(const Expression& expression) {
  if (evaluate(*expression.operands[1]).truth()) return evaluate(*expression.operands[0]);
  if (expression.operands[2] != nullptr) return evaluate(*expression.operands[2]);
  return Value::undefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.",
      expression.line));
}

// ---- Template

struct Template::Impl {
  std::string name;
  Parsed parsed;
};

Template::Template(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

Template Template::parse(std::string_view source, std::string name) {
  Parsed parsed = jinja::parse(source, name);
  return Template(std::make_unique<const Impl>(Impl{std::move(name), std::move(parsed)}));
}

bool Template::reads(const std::string& variable) const {
  return impl_->parsed.names.count(variable) > 0;
}

bool Template::marks_generation() const { return impl_->parsed.marks_generation; }

Rendering Template::render(const Variables& variables, const Limits& limits) const {
  Interpreter interpreter(impl_->name, variables, limits);
  return interpreter.render(impl_->parsed.body);
}

}  // namespace megatron::jinja
