// Parser of expressions. Precedence from lowest to highest: x if y else z; or; and; not;
// comparisons and `in`; + -; ~; * / // %; **; signs; then attributes, subscripts, calls, filters
// and tests after a value.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace megatron::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionPtr parse(bool conditional = true);
  // Parses one expression, or several separated by commas as a tuple. stop: a name that ends it.
  ExpressionPtr parse_tuple(bool conditional = true, std::string_view stop = "");
  // Parses filters applied to `value`; from_name: the first one has no "|".
  ExpressionPtr parse_filters(ExpressionPtr value, bool from_name);
  Target parse_target(bool with_namespace);
  ExpressionPtr make(Expression::Kind kind, int line, std::vector<ExpressionPtr> operands = {});

  std::set<std::string> names;  // variables read since the last clear()

 private:
  class Level;

  ExpressionPtr parse_binary(size_t level);
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_unary(bool with_filters = true);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_number();
  ExpressionPtr parse_braces(bool dict);
  ExpressionPtr parse_parentheses();
  ExpressionPtr parse_postfix(ExpressionPtr value, bool with_filters = false);
  ExpressionPtr parse_subscript(ExpressionPtr value);
  ExpressionPtr parse_subscribed();
  ExpressionPtr parse_filter(ExpressionPtr value);
  ExpressionPtr parse_test(ExpressionPtr value);
  ExpressionPtr parse_call(ExpressionPtr callee);
  void parse_arguments(Expression& node);
  bool at_end_of_tuple(std::string_view stop) const;
  void grow(Expression& expression, const Expression* part);
  Target parse_one_target(bool with_namespace);

  TokenStream& tokens_;
  int depth_ = 0;
};

}  // namespace megatron::jinja
