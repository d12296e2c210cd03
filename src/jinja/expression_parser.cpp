#include "jinja/expression_parser.h"

#include <algorithm>
#include <cstdlib>

#include "jinja/numbers.h"

namespace megatron::jinja {
namespace {

constexpr int kMaxNested = 100;  // nesting depth of brackets
constexpr size_t kSum = 2, kProduct = 3,
                 kPower = 4;       // levels of parse_binary; 0: or, 1: and
constexpr int kHighestTree = 500;  // nodes from the root of an expression to a leaf

std::vector<ExpressionPtr> list_of(ExpressionPtr first, ExpressionPtr second = nullptr) {
  std::vector<ExpressionPtr> result;
  result.push_back(std::move(first));
  if (second != nullptr) result.push_back(std::move(second));
  return result;
}

}  // namespace

class ExpressionParser::Level {
 public:
  explicit Level(ExpressionParser& parser) : parser_(parser) {
    if (++parser.depth_ > kMaxNested) {
      parser.tokens_.refuse(fmt::format("an expression nests deeper than {} levels", kMaxNested));
    }
  }
  ~Level() { --parser_.depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  ExpressionParser& parser_;
};

void ExpressionParser::grow(Expression& expression, const Expression* part) {
  if (part == nullptr) return;
  expression.height = std::max(expression.height, part->height + 1);
  if (expression.height > kHighestTree) {
    tokens_.refuse(
        fmt::format("an expression has more than {} operators in a chain", kHighestTree));
  }
}

ExpressionPtr ExpressionParser::make(Expression::Kind kind, int line,
                                     std::vector<ExpressionPtr> operands) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  for (const ExpressionPtr& operand : operands) grow(*node, operand.get());
  node->operands = std::move(operands);
  return node;
}

ExpressionPtr ExpressionParser::parse(bool conditional) {
  const Level level(*this);
  ExpressionPtr value = parse_binary(0);
  while (conditional && tokens_.is_name("if")) {
    const int line = tokens_.take().line;
    std::vector<ExpressionPtr> operands = list_of(std::move(value), parse_binary(0));
    operands.push_back(tokens_.skip_name("else") ? parse() : nullptr);
    value = make(Expression::Kind::conditional, line, std::move(operands));
  }
  return value;
}

// Parses binary operators of this level or stronger; all are left-associative.
ExpressionPtr ExpressionParser::parse_binary(size_t level) {
  struct Sign {
    size_t level;
    std::string_view text;
    Expression::Kind kind;
    Operator op = Operator::add;
  };
  static constexpr Sign kSigns[] = {
      {0, "or", Expression::Kind::either},
      {1, "and", Expression::Kind::both},
      {kSum, "+", Expression::Kind::calculate, Operator::add},
      {kSum, "-", Expression::Kind::calculate, Operator::subtract},
      {kProduct, "*", Expression::Kind::calculate, Operator::multiply},
      {kProduct, "/", Expression::Kind::calculate, Operator::divide},
      {kProduct, "//", Expression::Kind::calculate, Operator::floor_divide},
      {kProduct, "%", Expression::Kind::calculate, Operator::modulo},
      {kPower, "**", Expression::Kind::calculate, Operator::power}};
  const auto stronger = [&] {
    switch (level) {
      case 0: return parse_binary(1);
      case 1: return parse_not();
      case kSum: return parse_concatenation();
      case kProduct: return parse_binary(kPower);
      default: return parse_unary();
    }
  };
  ExpressionPtr left = stronger();
  while (true) {
    const auto* sign = std::find_if(std::begin(kSigns), std::end(kSigns), [&](const Sign& s) {
      return s.level == level && (tokens_.is_sign(s.text) || tokens_.is_name(s.text));
    });
    if (sign == std::end(kSigns)) return left;
    const int line = tokens_.take().line;
    left = make(sign->kind, line, list_of(std::move(left), stronger()));
    left->op = sign->op;
  }
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!tokens_.is_name("not")) return parse_compare();
  const Level level(*this);
  const int line = tokens_.take().line;
  return make(Expression::Kind::negation, line, list_of(parse_not()));
}

ExpressionPtr ExpressionParser::parse_compare() {
  static constexpr std::pair<std::string_view, Order> kSigns[] = {
      {"==", Order::equal},      {"!=", Order::not_equal}, {"<", Order::less},
      {"<=", Order::less_equal}, {">", Order::greater},    {">=", Order::greater_equal}};
  const int line = tokens_.current().line;
  ExpressionPtr left = parse_binary(kSum);
  std::vector<Comparison> comparisons;
  while (true) {
    const auto* found = std::find_if(std::begin(kSigns), std::end(kSigns), [&](const auto& sign) {
      return tokens_.skip_sign(sign.first);
    });
    if (found != std::end(kSigns)) {
      comparisons.push_back({found->second, parse_binary(kSum)});
    } else if (tokens_.skip_name("in")) {
      comparisons.push_back({Order::in, parse_binary(kSum)});
    } else if (tokens_.is_name("not") && tokens_.ahead().kind == Token::Kind::name &&
               tokens_.ahead().text == "in") {
      tokens_.take();
      tokens_.take();
      comparisons.push_back({Order::not_in, parse_binary(kSum)});
    } else {
      break;
    }
  }
  if (comparisons.empty()) return left;
  ExpressionPtr node = make(Expression::Kind::compare, line, list_of(std::move(left)));
  for (const Comparison& comparison : comparisons) grow(*node, comparison.right.get());
  node->comparisons = std::move(comparisons);
  return node;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  const int line = tokens_.current().line;
  std::vector<ExpressionPtr> parts = list_of(parse_binary(kProduct));
  while (tokens_.skip_sign("~")) parts.push_back(parse_binary(kProduct));
  if (parts.size() == 1) return std::move(parts[0]);
  return make(Expression::Kind::concatenate, line, std::move(parts));
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const Level level(*this);
  ExpressionPtr value;
  if (tokens_.is_sign("-") || tokens_.is_sign("+")) {
    const Token sign = tokens_.take();
    const bool minus = sign.text == "-";
    value = make(minus ? Expression::Kind::negative : Expression::Kind::positive, sign.line,
                 list_of(parse_unary(false)));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_postfix(std::move(value), true) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token& token = tokens_.current();
  const int line = token.line;
  if (token.kind == Token::Kind::name) {
    const std::string name = tokens_.take().text;
    ExpressionPtr constant = make(Expression::Kind::constant, line);
    if (name == "none" || name == "None") return constant;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      constant->constant = Value::boolean(name[0] == 't' || name[0] == 'T');
      return constant;
    }
    names.insert(name);
    constant->kind = Expression::Kind::name;
    constant->name = name;
    return constant;
  }
  if (token.kind == Token::Kind::string) {
    std::string text;
    while (tokens_.is(Token::Kind::string)) text += tokens_.take().text;
    ExpressionPtr constant = make(Expression::Kind::constant, line);
    constant->constant = Value::text(std::move(text));
    return constant;
  }
  if (token.kind == Token::Kind::integer || token.kind == Token::Kind::real) return parse_number();
  if (tokens_.is_sign("(")) return parse_parentheses();
  if (tokens_.is_sign("[") || tokens_.is_sign("{")) return parse_braces(tokens_.is_sign("{"));
  tokens_.refuse(fmt::format("unexpected '{}'", describe(token)));
}

ExpressionPtr ExpressionParser::parse_number() {
  const Token token = tokens_.take();
  ExpressionPtr constant = make(Expression::Kind::constant, token.line);
  if (token.kind == Token::Kind::real) {
    constant->constant = Value::real(std::strtod(token.text.c_str(), nullptr));
    return constant;
  }
  std::optional<Value> number;
  try {
    number = read_integer(token.text, 0);
  } catch (const Error& error) {  // too many digits in base 16
    tokens_.refuse(error.what(), token.line);
  }
  if (!number && token.text.size() > BigInteger::kMaxDigits)
    tokens_.refuse(fmt::format("an integer has {} digits; the limit is {}", token.text.size(),
                               BigInteger::kMaxDigits),
                   token.line);
  if (!number) tokens_.refuse(fmt::format("'{}' is not a number", token.text), token.line);
  constant->constant = *number;
  return constant;
}

ExpressionPtr ExpressionParser::parse_parentheses() {
  const int line = tokens_.take().line;
  if (tokens_.skip_sign(")")) return make(Expression::Kind::tuple, line);
  ExpressionPtr value = parse_tuple();
  tokens_.expect_sign(")");
  return value;
}

bool ExpressionParser::at_end_of_tuple(std::string_view stop) const {
  return tokens_.is(Token::Kind::variable_end) || tokens_.is(Token::Kind::block_end) ||
         tokens_.is_sign(")") || (!stop.empty() && tokens_.is_name(stop));
}

ExpressionPtr ExpressionParser::parse_tuple(bool conditional, std::string_view stop) {
  const int line = tokens_.current().line;
  if (at_end_of_tuple(stop))
    tokens_.refuse(fmt::format("Expected an expression, got '{}'", describe(tokens_.current())));
  std::vector<ExpressionPtr> parts = list_of(parse(conditional));
  bool many = false;
  while (tokens_.skip_sign(",")) {
    many = true;
    if (at_end_of_tuple(stop)) break;
    parts.push_back(parse(conditional));
  }
  if (!many) return std::move(parts[0]);
  return make(Expression::Kind::tuple, line, std::move(parts));
}

// A list, or a dict's keys and values.
ExpressionPtr ExpressionParser::parse_braces(bool dict) {
  const std::string_view end = dict ? "}" : "]";
  const int line = tokens_.take().line;
  std::vector<ExpressionPtr> parts;
  while (!tokens_.is_sign(end)) {
    if (!parts.empty()) tokens_.expect_sign(",");
    if (tokens_.is_sign(end)) break;
    parts.push_back(parse());
    if (!dict) continue;
    tokens_.expect_sign(":");
    parts.push_back(parse());
  }
  tokens_.expect_sign(end);
  return make(dict ? Expression::Kind::dict : Expression::Kind::list, line, std::move(parts));
}

// Parses attributes, subscripts and calls after a value; or filters, tests and calls.
ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr value, bool with_filters) {
  while (true) {
    if (tokens_.is_sign("(")) {
      value = parse_call(std::move(value));
    } else if (!with_filters && (tokens_.is_sign(".") || tokens_.is_sign("["))) {
      value = parse_subscript(std::move(value));
    } else if (with_filters && tokens_.skip_sign("|")) {
      value = parse_filter(std::move(value));
    } else if (with_filters && tokens_.is_name("is")) {
      value = parse_test(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr value) {
  const Token open = tokens_.take();
  if (open.text == ".") {
    if (tokens_.is(Token::Kind::integer))
      return make(Expression::Kind::element, open.line, list_of(std::move(value), parse_number()));
    const std::string name = tokens_.expect(Token::Kind::name).text;
    ExpressionPtr node = make(Expression::Kind::attribute, open.line, list_of(std::move(value)));
    node->name = name;
    return node;
  }
  std::vector<ExpressionPtr> parts;
  bool many = false;
  while (!tokens_.is_sign("]")) {
    if (!parts.empty()) {
      tokens_.expect_sign(",");
      many = true;
      if (tokens_.is_sign("]")) break;
    }
    parts.push_back(parse_subscribed());
  }
  if (parts.empty()) tokens_.refuse("expected token 'end of subscript', got ']'");
  tokens_.expect_sign("]");
  if (!many && parts[0]->kind == Expression::Kind::slice) {
    parts[0]->operands[0] = std::move(value);
    grow(*parts[0], parts[0]->operands[0].get());
    return std::move(parts[0]);
  }
  for (const ExpressionPtr& part : parts)
    if (part->kind == Expression::Kind::slice && part->operands[0] == nullptr)
      tokens_.refuse("a slice cannot be one of several subscripts", open.line);
  ExpressionPtr key =
      many ? make(Expression::Kind::tuple, open.line, std::move(parts)) : std::move(parts[0]);
  return make(Expression::Kind::element, open.line, list_of(std::move(value), std::move(key)));
}

// Parses the text between brackets: an expression, or a slice, whose operand is not known yet.
ExpressionPtr ExpressionParser::parse_subscribed() {
  const auto at_end = [&] {
    return tokens_.is_sign(":") || tokens_.is_sign("]") || tokens_.is_sign(",");
  };
  const int line = tokens_.current().line;
  ExpressionPtr first = at_end() ? nullptr : parse();
  if (!tokens_.is_sign(":")) {
    if (first == nullptr) tokens_.refuse(fmt::format("unexpected '{}'", tokens_.current().text));
    return first;
  }
  std::vector<ExpressionPtr> operands(1);
  operands.push_back(std::move(first));
  while (tokens_.skip_sign(":")) {
    if (operands.size() > 3) tokens_.unexpected("]");
    operands.push_back(at_end() ? nullptr : parse());
  }
  operands.resize(4);
  return make(Expression::Kind::slice, line, std::move(operands));
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr value, bool from_name) {
  if (from_name) value = parse_filter(std::move(value));
  while (tokens_.skip_sign("|")) value = parse_filter(std::move(value));
  return value;
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr value) {
  const Token name = tokens_.expect(Token::Kind::name);
  ExpressionPtr node = make(Expression::Kind::filter, name.line, list_of(std::move(value)));
  node->name = name.text;
  if (tokens_.is_sign("(")) parse_arguments(*node);
  return node;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr value) {
  const int line = tokens_.take().line;
  const bool negated = tokens_.skip_name("not");
  const Token name = tokens_.expect(Token::Kind::name);
  ExpressionPtr node = make(Expression::Kind::test, line, list_of(std::move(value)));
  node->name = name.text;
  const Token& next = tokens_.current();
  const bool value_follows = next.kind == Token::Kind::string ||
                             next.kind == Token::Kind::integer || next.kind == Token::Kind::real ||
                             tokens_.is_sign("[") || tokens_.is_sign("{") ||
                             (next.kind == Token::Kind::name && next.text != "else" &&
                              next.text != "or" && next.text != "and");
  if (tokens_.is_sign("(")) {
    parse_arguments(*node);
  } else if (value_follows) {
    if (tokens_.is_name("is")) tokens_.refuse("You cannot chain multiple tests with is");
    node->arguments.push_back({"", 0, parse_postfix(parse_primary())});
    grow(*node, node->arguments[0].value.get());
  }
  return negated ? make(Expression::Kind::negation, line, list_of(std::move(node)))
                 : std::move(node);
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  ExpressionPtr node =
      make(Expression::Kind::call, tokens_.current().line, list_of(std::move(callee)));
  parse_arguments(*node);
  return node;
}

void ExpressionParser::parse_arguments(Expression& node) {
  tokens_.expect_sign("(");
  std::vector<Argument>& arguments = node.arguments;
  bool only_keywords = false;
  while (!tokens_.is_sign(")")) {
    if (!arguments.empty()) tokens_.expect_sign(",");
    if (tokens_.is_sign(")")) break;
    Argument argument;
    if (tokens_.skip_sign("**")) argument.stars = 2;
    if (argument.stars == 0 && tokens_.skip_sign("*")) argument.stars = 1;
    if (argument.stars == 0 && tokens_.is(Token::Kind::name) &&
        tokens_.ahead().kind == Token::Kind::sign && tokens_.ahead().text == "=") {
      argument.keyword = tokens_.take().text;
      tokens_.take();
    }
    const bool keyword = !argument.keyword.empty() || argument.stars == 2;
    if (only_keywords && !keyword && argument.stars == 0)
      tokens_.refuse("invalid syntax for function call expression");
    only_keywords = only_keywords || keyword;
    argument.value = parse();
    grow(node, argument.value.get());
    arguments.push_back(std::move(argument));
  }
  tokens_.expect_sign(")");
}

Target ExpressionParser::parse_one_target(bool with_namespace) {
  const Level level(*this);
  if (tokens_.skip_sign("(")) {
    Target target = parse_target(false);
    tokens_.expect_sign(")");
    return target;
  }
  Target target;
  target.name = tokens_.expect(Token::Kind::name).text;
  for (const char* constant : {"true", "True", "false", "False", "none", "None"})
    if (target.name == constant) tokens_.refuse("can't assign to 'const'");
  if (with_namespace && tokens_.skip_sign("."))
    target.member = tokens_.expect(Token::Kind::name).text;
  return target;
}

Target ExpressionParser::parse_target(bool with_namespace) {
  Target first = parse_one_target(with_namespace);
  if (!tokens_.is_sign(",")) return first;
  Target all;
  all.many = true;
  all.parts.push_back(std::move(first));
  while (tokens_.skip_sign(",")) {
    if (!tokens_.is(Token::Kind::name) && !tokens_.is_sign("(")) break;
    if (tokens_.is_name("in")) break;
    all.parts.push_back(parse_one_target(with_namespace));
  }
  return all;
}

}  // namespace megatron::jinja
