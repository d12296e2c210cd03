#include "jinja/interpreter.h"

#include <algorithm>

#include "jinja/conversions.h"
#include "jinja/error.h"
#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {

using Kind = Statement::Kind;

// A scope of its own inside `parent`, as long as it lives.
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
  const std::shared_ptr<Scope>& outer() const { return outer_; }

 private:
  Interpreter& interpreter_;
  std::shared_ptr<Scope> outer_;
};

Interpreter::Interpreter(std::string name, const Variables& variables, const Limits& limits)
    : name_(std::move(name)), budget_(limits), scope_(std::make_shared<Scope>()) {
  scope_->variables = standard_functions();
  auto given = std::make_shared<Scope>();
  given->variables = variables;
  given->parent = scope_;
  scope_ = std::make_shared<Scope>();
  scope_->parent = std::move(given);
}

Interpreter::~Interpreter() {
  // All of them are alive here, so that no chain of them is taken down by recursion.
  for (const auto& object : namespaces_) object->members.clear();
  for (const auto& scope : captured_scopes_) scope->variables.clear();
}

Rendering Interpreter::render(const Body& body) {
  try {
    execute(body);
  } catch (const TemplateError&) {
    throw;
  } catch (const Raised& error) {
    throw TemplateError(name_, line_, error.what(), true);
  } catch (const Error& error) {
    throw TemplateError(name_, line_, error.what());
  }
  return {std::move(root_), std::move(generation_)};
}

void Interpreter::write(std::string_view text) {
  budget_.spend_bytes(text.size());
  budget_.check_length(out_->size() + text.size());
  out_->append(text);
}

std::string Interpreter::capture(const Body& body, Flow* flow) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  try {
    const Flow result = execute(body);
    if (flow != nullptr) *flow = result;
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
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
  line_ = statement.line;
  switch (statement.kind) {
    case Kind::text: write(statement.text); break;
    case Kind::output: {
      const Value value = evaluate(*statement.value);
      value.is_text() ? write(value.bytes()) : write(to_text(value, budget_));
      break;
    }
    case Kind::set: assign(statement.target, evaluate(*statement.value)); break;
    case Kind::set_block:
    case Kind::filter: return run_captured(statement);
    case Kind::condition: return run_condition(statement);
    case Kind::loop: return run_for(statement);
    case Kind::macro: scope_->set(statement.text, Value::object(make_macro(statement))); break;
    case Kind::call: run_call(statement); break;
    case Kind::with: return run_with(statement);
    case Kind::generation: run_generation(statement); break;
    case Kind::leave: return Flow::leave;
    case Kind::next: return Flow::next;
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
    std::string text = capture(statement.body, &flow);
    if (flow != Flow::on) return flow;
    inner.scope().set(kCaptured, Value::text(std::move(text)));
    value = evaluate(*statement.value);
  }
  if (statement.kind == Kind::set_block) {
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
  Values elements = elements_of(evaluate(*statement.value), budget_);
  loop_over(statement, std::move(elements), 0);
  return Flow::on;
}

void Interpreter::loop_over(const Statement& statement, Values elements, int depth) {
  const auto loop = std::make_shared<Loop>(selected(statement, std::move(elements)), depth);
  struct Forget {  // what changed() saw may hold the loop itself
    Loop& loop;
    ~Forget() { loop.last_seen.reset(); }
  } forget{*loop};
  if (statement.recursive) {
    loop->recursive = &statement;
    loop->scope = scope_;
    captured_scopes_.push_back(scope_);
  }
  for (size_t i = 0; i < loop->elements.size(); ++i) {
    budget_.spend(1);
    loop->index = static_cast<int64_t>(i);
    InScope inner(*this);
    inner.scope().set("loop", Value::object(loop));
    assign(statement.target, loop->elements[i]);
    if (execute(statement.body) == Flow::leave) return;
  }
  if (!loop->elements.empty() || statement.otherwise.empty()) return;
  const InScope inner(*this);
  execute(statement.otherwise);
}

std::string Interpreter::run_loop(const Statement& loop, const Values& elements, int depth,
                                  const std::shared_ptr<Scope>& scope) {
  const Budget::Level level(budget_);
  const InScope inner(*this, scope);
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  try {
    loop_over(loop, elements, depth);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  return text;
}

std::shared_ptr<Macro> Interpreter::make_macro(const Statement& statement) {
  auto macro = std::make_shared<Macro>();
  macro->statement = &statement;
  macro->scope = scope_;
  if (captured_scopes_.empty() || captured_scopes_.back() != scope_)
    captured_scopes_.push_back(scope_);
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
    scope_->set("caller", std::move(caller));
  }
  if (statement.reads_kwargs) {
    std::vector<std::pair<Value, Value>> members;
    for (const auto& [name, value] : call.keyword) members.emplace_back(Value::text(name), value);
    scope_->set("kwargs", Value::dict(std::move(members)));
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
    scope_->set("varargs", Value::tuple(Values(first, call.positional.end())));
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
      scope_->set(parameter.name, call.positional[i]);
      continue;
    }
    const auto named = std::find_if(call.keyword.begin(), call.keyword.end(),
                                    [&](const auto& pair) { return pair.first == parameter.name; });
    if (named != call.keyword.end()) {
      scope_->set(parameter.name, named->second);
      call.keyword.erase(named);
    } else if (parameter.initial != nullptr) {
      scope_->set(parameter.name, evaluate(*parameter.initial));
    } else {
      scope_->set(parameter.name,
                  Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
    }
  }
  bind_extra_arguments(macro, call, used);
  return Value::text(capture(statement.body));
}

void Interpreter::run_call(const Statement& statement) {
  Value caller = Value::object(make_macro(statement));
  write(to_text(evaluate_call(*statement.value, std::move(caller)), budget_));
}

void Interpreter::run_generation(const Statement& statement) {
  std::string text;
  {
    const InScope inner(*this);
    text = capture(statement.body);
  }
  counted_ += count_code_points(std::string_view(root_).substr(counted_bytes_));
  counted_bytes_ = root_.size();
  generation_.emplace_back(counted_, counted_ + count_code_points(text));
  write(text);
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.member.empty()) {
    const Value* owner = scope_->find(target.name);
    auto* space = owner != nullptr && owner->is_object()
                      ? dynamic_cast<Namespace*>(owner->as_object().get())
                      : nullptr;
    MG_CHECK(space != nullptr, "cannot assign attribute on non-namespace object");
    space->set(target.member, value);
    return;
  }
  if (!target.many) {
    scope_->set(target.name, value);
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

Value Interpreter::call(const Value& callee, Values positional,
                        std::vector<std::pair<std::string, Value>> keyword) {
  check_defined(callee);
  MG_CHECK(callee.is_object() && callee.as_object()->callable(), "'{}' object is not callable",
           callee.type_name());
  const Budget::Level level(budget_);
  const int line = line_;
  Call call{*this, budget_, std::move(positional), std::move(keyword)};
  Value result = callee.as_object()->call(call);
  line_ = line;
  return result;
}

Value Interpreter::filter(std::string_view name, Values positional,
                          std::vector<std::pair<std::string, Value>> keyword) {
  const Native native = find_filter(name);
  MG_CHECK(native != nullptr, "No filter named '{}'.", name);
  const Budget::Level level(budget_);
  Call call{*this, budget_, std::move(positional), std::move(keyword)};
  return native(call);
}

bool Interpreter::test(std::string_view name, Values positional,
                       std::vector<std::pair<std::string, Value>> keyword) {
  const Native native = find_test(name);
  MG_CHECK(native != nullptr, "No test named '{}'.", name);
  Call call{*this, budget_, std::move(positional), std::move(keyword)};
  return native(call).truth();
}

}  // namespace megatron::jinja
