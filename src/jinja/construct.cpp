#include "jinja/construct.h"

#include "base/error.h"
#include "jinja/operators.h"

namespace megatron::jinja {
namespace {

std::string name_of(const Expression& expression) {
  if (expression.kind == Expression::Kind::name) return expression.name;
  return expression.kind == Expression::Kind::attribute ? "." + expression.name : "a value";
}

std::string shown(const Expression& expression) {
  switch (expression.kind) {
    case Expression::Kind::filter: return fmt::format("filter '{}'", expression.name);
    case Expression::Kind::test: return fmt::format("test '{}'", expression.name);
    case Expression::Kind::call: return fmt::format("call of {}", name_of(*expression.operands[0]));
    case Expression::Kind::attribute: return fmt::format("attribute '{}'", expression.name);
    case Expression::Kind::element: return "subscript";
    case Expression::Kind::slice: return "slice";
    case Expression::Kind::compare: return "comparison";
    case Expression::Kind::concatenate: return "operator ~";
    case Expression::Kind::calculate: return fmt::format("operator {}", sign_of(expression.op));
    case Expression::Kind::negative: return "operator -";
    case Expression::Kind::positive: return "operator +";
    default: return "";
  }
}

std::string_view shown(Statement::Kind kind) {
  switch (kind) {
    case Statement::Kind::set:
    case Statement::Kind::set_block: return "{% set %}";
    case Statement::Kind::filter: return "{% filter %}";
    case Statement::Kind::condition: return "{% if %}";
    case Statement::Kind::loop: return "{% for %}";
    case Statement::Kind::macro: return "{% macro %}";
    case Statement::Kind::call: return "{% call %}";
    case Statement::Kind::with: return "{% with %}";
    case Statement::Kind::generation: return "{% generation %}";
    case Statement::Kind::output: return "{{ }}";
    default: return "text";
  }
}

}  // namespace

std::string construct_of(const Statement* statement, const Expression* expression) {
  std::string text = expression != nullptr ? shown(*expression) : "";
  if (text.empty() && statement != nullptr) text = shown(statement->kind);
  return text;
}

}  // namespace megatron::jinja
