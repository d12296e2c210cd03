// Expressions.
#include "jinja/conversions.h"
#include "jinja/filters.h"
#include "jinja/interpreter.h"
#include "jinja/operators.h"

namespace megatron::jinja {

using Kind = Expression::Kind;

void insert_member(std::vector<std::pair<Value, Value>>& members, const Value& key, Value value,
                   Budget& budget) {
  for (auto& [name, old] : members) {
    if (!equal(name, key, budget)) continue;
    old = std::move(value);
    return;
  }
  members.emplace_back(key, std::move(value));
}

Value Interpreter::evaluate(const Expression& expression) {
  const Budget::Level level(budget_);
  budget_.spend(1);
  line_ = expression.line;
  const auto operand = [&](size_t i) { return evaluate(*expression.operands[i]); };
  switch (expression.kind) {
    case Kind::constant: return expression.constant;
    case Kind::name: return evaluate_name(expression);
    case Kind::list: return Value::list(evaluate_all(expression.operands));
    case Kind::tuple: return Value::tuple(evaluate_all(expression.operands));
    case Kind::dict: return evaluate_dict(expression);
    case Kind::attribute: return attribute_of(operand(0), expression.name);
    case Kind::element: {
      const Value value = operand(0);
      return element_of(value, operand(1), budget_);
    }
    case Kind::slice: {
      const Value value = operand(0);
      const Value begin = evaluate_or_none(expression.operands[1]);
      const Value end = evaluate_or_none(expression.operands[2]);
      return slice_of(value, begin, end, evaluate_or_none(expression.operands[3]), budget_);
    }
    case Kind::call: return evaluate_call(expression);
    case Kind::filter: {
      Call call = evaluate_arguments(expression);
      line_ = expression.line;
      return filter(expression.name, std::move(call.positional), std::move(call.keyword));
    }
    case Kind::test: return evaluate_test(expression);
    case Kind::negative: return negative(operand(0));
    case Kind::positive: return positive(operand(0));
    case Kind::negation: return Value::boolean(!operand(0).truth());
    case Kind::both: {
      Value left = operand(0);
      return left.truth() ? operand(1) : left;
    }
    case Kind::either: {
      Value left = operand(0);
      return left.truth() ? left : operand(1);
    }
    case Kind::compare: return evaluate_compare(expression);
    case Kind::calculate: {
      const Value left = operand(0);
      return calculate(expression.op, left, operand(1), budget_);
    }
    case Kind::concatenate: return evaluate_concatenation(expression);
    case Kind::conditional: return evaluate_conditional(expression);
  }
  return Value();
}

Value Interpreter::evaluate_or_none(const ExpressionPtr& expression) {
  return expression == nullptr ? Value() : evaluate(*expression);
}

Value Interpreter::evaluate_name(const Expression& expression) {
  const Value* found = scope_->find(expression.name);
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
    check_hashable(key);
    insert_member(members, key, evaluate(*expression.operands[i + 1]), budget_);
  }
  return Value::dict(std::move(members));
}

// The first positional argument is what a filter or a test is applied to.
Call Interpreter::evaluate_arguments(const Expression& expression) {
  Call call{*this, budget_, {}};
  if (expression.kind != Kind::call) call.positional.push_back(evaluate(*expression.operands[0]));
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
  Call arguments = evaluate_arguments(expression);
  if (caller.is_object()) arguments.keyword.emplace_back("caller", std::move(caller));
  line_ = expression.line;
  return call(callee, std::move(arguments.positional), std::move(arguments.keyword));
}

Value Interpreter::evaluate_test(const Expression& expression) {
  Call call = evaluate_arguments(expression);
  line_ = expression.line;
  return Value::boolean(test(expression.name, std::move(call.positional), std::move(call.keyword)));
}

bool Interpreter::compare(Comparison::Kind kind, const Value& left, const Value& right) {
  using Order = Comparison::Kind;
  switch (kind) {
    case Order::equal: return equal(left, right, budget_);
    case Order::not_equal: return !equal(left, right, budget_);
    case Order::less: return ordered("<", left, right, budget_);
    case Order::less_equal: return ordered("<=", left, right, budget_);
    case Order::greater: return ordered(">", left, right, budget_);
    case Order::greater_equal: return ordered(">=", left, right, budget_);
    case Order::in: return contains(right, left, budget_);
    case Order::not_in: return !contains(right, left, budget_);
  }
  return false;
}

Value Interpreter::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  for (const Comparison& comparison : expression.comparisons) {
    Value right = evaluate(*comparison.right);
    if (!compare(comparison.kind, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_concatenation(const Expression& expression) {
  std::string text;
  for (const Value& part : evaluate_all(expression.operands)) {
    text += to_text(part, budget_);
    budget_.check_length(text.size());
  }
  budget_.spend_bytes(text.size());
  return Value::text(std::move(text));
}

Value Interpreter::evaluate_conditional(const Expression& expression) {
  if (evaluate(*expression.operands[1]).truth()) return evaluate(*expression.operands[0]);
  if (expression.operands[2] != nullptr) return evaluate(*expression.operands[2]);
  return Value::undefined(
      fmt::format("the inline if-expression on line {} evaluated to false and no else section was "
                  "defined.",
                  expression.line));
}

}  // namespace megatron::jinja
