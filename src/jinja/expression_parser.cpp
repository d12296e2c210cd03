#include "jinja/expression_parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace megatron::jinja {
namespace {

using Kind = Expression::Kind;

constexpr int kMostNested = 100;   // brackets within one another
constexpr int kHighestTree = 500;  // nodes on the way from the root of an expression to a leaf

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
    if (++parser.depth_ > kMostNested) {
      parser.tokens_.refuse(fmt::format("an expression nests deeper than {} levels", kMostNested));
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

ExpressionPtr ExpressionParser::make(Kind kind, int line, std::vector<ExpressionPtr> operands) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  for (const ExpressionPtr& operand : operands) grow(*node, operand.get());
  node->operands = std::move(operands);
  return node;
}

ExpressionPtr ExpressionParser::parse(bool conditional) {
  const Level level(*this);
  ExpressionPtr value = parse_or();
  while (conditional && tokens_.is_name("if")) {
    const int line = tokens_.take().line;
    std::vector<ExpressionPtr> operands = list_of(std::move(value), parse_or());
    operands.push_back(tokens_.skip_name("else") ? parse() : nullptr);
    value = make(Kind::conditional, line, std::move(operands));
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (tokens_.is_name("or")) {
    const int line = tokens_.take().line;
    left = make(Kind::either, line, list_of(std::move(left), parse_and()));
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (tokens_.is_name("and")) {
    const int line = tokens_.take().line;
    left = make(Kind::both, line, list_of(std::move(left), parse_not()));
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!tokens_.is_name("not")) return parse_compare();
  const Level level(*this);
  const int line = tokens_.take().line;
  return make(Kind::negation, line, list_of(parse_not()));
}

ExpressionPtr ExpressionParser::parse_compare() {
  using Order = Comparison::Kind;
  static constexpr std::pair<std::string_view, Order> kSigns[] = {
      {"==", Order::equal},      {"!=", Order::not_equal}, {"<", Order::less},
      {"<=", Order::less_equal}, {">", Order::greater},    {">=", Order::greater_equal}};
  const int line = tokens_.current().line;
  ExpressionPtr left = parse_sum();
  std::vector<Comparison> comparisons;
  while (true) {
    const auto* found = std::find_if(std::begin(kSigns), std::end(kSigns), [&](const auto& sign) {
      return tokens_.skip_sign(sign.first);
    });
    if (found != std::end(kSigns)) {
      comparisons.push_back({found->second, parse_sum()});
    } else if (tokens_.skip_name("in")) {
      comparisons.push_back({Order::in, parse_sum()});
    } else if (tokens_.is_name("not") && tokens_.ahead().kind == Token::Kind::name &&
               tokens_.ahead().text == "in") {
      tokens_.take();
      tokens_.take();
      comparisons.push_back({Order::not_in, parse_sum()});
    } else {
      break;
    }
  }
  if (comparisons.empty()) return left;
  ExpressionPtr node = make(Kind::compare, line, list_of(std::move(left)));
  for (const Comparison& comparison : comparisons) grow(*node, comparison.right.get());
  node->comparisons = std::move(comparisons);
  return node;
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concatenation();
  while (tokens_.is_sign("+") || tokens_.is_sign("-")) {
    const Token sign = tokens_.take();
    left = make(Kind::calculate, sign.line, list_of(std::move(left), parse_concatenation()));
    left->op = sign.text == "+" ? Operator::add : Operator::subtract;
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  const int line = tokens_.current().line;
  std::vector<ExpressionPtr> parts = list_of(parse_product());
  while (tokens_.skip_sign("~")) parts.push_back(parse_product());
  if (parts.size() == 1) return std::move(parts[0]);
  return make(Kind::concatenate, line, std::move(parts));
}

ExpressionPtr ExpressionParser::parse_product() {
  ExpressionPtr left = parse_power();
  while (tokens_.is_sign("*") || tokens_.is_sign("/") || tokens_.is_sign("//") ||
         tokens_.is_sign("%")) {
    const Token sign = tokens_.take();
    left = make(Kind::calculate, sign.line, list_of(std::move(left), parse_power()));
    left->op = sign.text == "*"    ? Operator::multiply
               : sign.text == "/"  ? Operator::divide
               : sign.text == "//" ? Operator::floor_divide
                                   : Operator::modulo;
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary();
  while (tokens_.is_sign("**")) {
    const int line = tokens_.take().line;
    left = make(Kind::calculate, line, list_of(std::move(left), parse_unary()));
    left->op = Operator::power;
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const Level level(*this);
  ExpressionPtr value;
  if (tokens_.is_sign("-") || tokens_.is_sign("+")) {
    const Token sign = tokens_.take();
    value = make(sign.text == "-" ? Kind::negative : Kind::positive, sign.line,
                 list_of(parse_unary(false)));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_postfix_and_filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token& token = tokens_.current();
  const int line = token.line;
  if (token.kind == Token::Kind::name) {
    const std::string name = tokens_.take().text;
    ExpressionPtr constant = make(Kind::constant, line);
    if (name == "none" || name == "None") return constant;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      constant->constant = Value::boolean(name[0] == 't' || name[0] == 'T');
      return constant;
    }
    names.insert(name);
    constant->kind = Kind::name;
    constant->name = name;
    return constant;
  }
  if (token.kind == Token::Kind::string) {
    std::string text;
    while (tokens_.is(Token::Kind::string)) text += tokens_.take().text;
    ExpressionPtr constant = make(Kind::constant, line);
    constant->constant = Value::text(std::move(text));
    return constant;
  }
  if (token.kind == Token::Kind::integer || token.kind == Token::Kind::real) return parse_number();
  if (tokens_.is_sign("(")) return parse_parentheses();
  if (tokens_.is_sign("[")) return parse_list();
  if (tokens_.is_sign("{")) return parse_dict();
  tokens_.refuse(fmt::format("unexpected '{}'", describe(token)));
}

ExpressionPtr ExpressionParser::parse_number() {
  const Token token = tokens_.take();
  ExpressionPtr constant = make(Kind::constant, token.line);
  if (token.kind == Token::Kind::real) {
    constant->constant = Value::real(std::strtod(token.text.c_str(), nullptr));
    return constant;
  }
  const char letter = token.text.size() > 1 ? token.text[1] : '0';
  const int base = letter == 'x' || letter == 'X'   ? 16
                   : letter == 'o' || letter == 'O' ? 8
                   : letter == 'b' || letter == 'B' ? 2
                                                    : 10;
  int64_t number = 0;
  const char* begin = token.text.data() + (base == 10 ? 0 : 2);
  const char* end = token.text.data() + token.text.size();
  const auto result = std::from_chars(begin, end, number, base);
  if (result.ec == std::errc::result_out_of_range)
    tokens_.refuse(fmt::format("the integer {} has more than 64 bits", token.text), token.line);
  const bool leading_zero = base == 10 && number != 0 && token.text[0] == '0';
  if (result.ec != std::errc() || result.ptr != end || leading_zero)
    tokens_.refuse(fmt::format("'{}' is no number", token.text), token.line);
  constant->constant = Value::integer(number);
  return constant;
}

ExpressionPtr ExpressionParser::parse_parentheses() {
  const int line = tokens_.take().line;
  if (tokens_.skip_sign(")")) return make(Kind::tuple, line);
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
  return make(Kind::tuple, line, std::move(parts));
}

ExpressionPtr ExpressionParser::parse_list() {
  const int line = tokens_.take().line;
  std::vector<ExpressionPtr> elements;
  while (!tokens_.is_sign("]")) {
    if (!elements.empty()) tokens_.expect_sign(",");
    if (tokens_.is_sign("]")) break;
    elements.push_back(parse());
  }
  tokens_.expect_sign("]");
  return make(Kind::list, line, std::move(elements));
}

ExpressionPtr ExpressionParser::parse_dict() {
  const int line = tokens_.take().line;
  std::vector<ExpressionPtr> members;
  while (!tokens_.is_sign("}")) {
    if (!members.empty()) tokens_.expect_sign(",");
    if (tokens_.is_sign("}")) break;
    members.push_back(parse());
    tokens_.expect_sign(":");
    members.push_back(parse());
  }
  tokens_.expect_sign("}");
  return make(Kind::dict, line, std::move(members));
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr value) {
  while (true) {
    if (tokens_.is_sign(".") || tokens_.is_sign("[")) {
      value = parse_subscript(std::move(value));
    } else if (tokens_.is_sign("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_postfix_and_filters(ExpressionPtr value) {
  while (true) {
    if (tokens_.is_sign("|")) {
      tokens_.take();
      value = parse_filter(std::move(value));
    } else if (tokens_.is_name("is")) {
      value = parse_test(std::move(value));
    } else if (tokens_.is_sign("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr value) {
  const Token open = tokens_.take();
  if (open.text == ".") {
    if (tokens_.is(Token::Kind::integer))
      return make(Kind::element, open.line, list_of(std::move(value), parse_number()));
    const std::string name = tokens_.expect(Token::Kind::name).text;
    ExpressionPtr node = make(Kind::attribute, open.line, list_of(std::move(value)));
    node->name = name;
    return node;
  }
  const auto at_end = [&] { return tokens_.is_sign(":") || tokens_.is_sign("]"); };
  std::vector<ExpressionPtr> operands = list_of(std::move(value));
  ExpressionPtr first = at_end() ? nullptr : parse_tuple();
  if (!tokens_.is_sign(":")) {
    if (first == nullptr) tokens_.refuse("unexpected ']'");
    tokens_.expect_sign("]");
    operands.push_back(std::move(first));
    return make(Kind::element, open.line, std::move(operands));
  }
  operands.push_back(std::move(first));
  while (tokens_.skip_sign(":")) {
    if (operands.size() > 3) tokens_.unexpected("]");
    operands.push_back(at_end() ? nullptr : parse());
  }
  operands.resize(4);
  tokens_.expect_sign("]");
  return make(Kind::slice, open.line, std::move(operands));
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr value, bool from_name) {
  if (from_name) value = parse_filter(std::move(value));
  while (tokens_.skip_sign("|")) value = parse_filter(std::move(value));
  return value;
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr value) {
  const Token name = tokens_.expect(Token::Kind::name);
  ExpressionPtr node = make(Kind::filter, name.line, list_of(std::move(value)));
  node->name = name.text;
  while (tokens_.skip_sign(".")) node->name += "." + tokens_.expect(Token::Kind::name).text;
  if (tokens_.is_sign("(")) node->arguments = parse_arguments();
  for (const Argument& argument : node->arguments) grow(*node, argument.value.get());
  return node;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr value) {
  const int line = tokens_.take().line;
  const bool negated = tokens_.skip_name("not");
  const Token name = tokens_.expect(Token::Kind::name);
  ExpressionPtr node = make(Kind::test, line, list_of(std::move(value)));
  node->name = name.text;
  const Token& next = tokens_.current();
  const bool value_follows = next.kind == Token::Kind::string ||
                             next.kind == Token::Kind::integer || next.kind == Token::Kind::real ||
                             tokens_.is_sign("[") || tokens_.is_sign("{") ||
                             (next.kind == Token::Kind::name && next.text != "else" &&
                              next.text != "or" && next.text != "and");
  if (tokens_.is_sign("(")) {
    node->arguments = parse_arguments();
  } else if (value_follows) {
    if (tokens_.is_name("is")) tokens_.refuse("You cannot chain multiple tests with is");
    node->arguments.push_back({"", 0, parse_postfix(parse_primary())});
  }
  for (const Argument& argument : node->arguments) grow(*node, argument.value.get());
  return negated ? make(Kind::negation, line, list_of(std::move(node))) : std::move(node);
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  const int line = tokens_.current().line;
  std::vector<Argument> arguments = parse_arguments();
  ExpressionPtr node = make(Kind::call, line, list_of(std::move(callee)));
  for (const Argument& argument : arguments) grow(*node, argument.value.get());
  node->arguments = std::move(arguments);
  return node;
}

std::vector<Argument> ExpressionParser::parse_arguments() {
  tokens_.expect_sign("(");
  std::vector<Argument> arguments;
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
    arguments.push_back(std::move(argument));
  }
  tokens_.expect_sign(")");
  return arguments;
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
