#include <algorithm>
#include <initializer_list>

#include "jinja/expression_parser.h"
#include "jinja/lexer.h"

namespace megatron::jinja {
namespace {

constexpr int kMaxNested = 100;  // nesting depth of tags

class StatementParser {
 public:
  StatementParser(std::string_view source, const std::string& name)
      : tokens_(tokenize(source, name), name), expressions_(tokens_) {}

  Parsed run() {
    Body body = parse_body({});
    return {std::move(body), std::move(expressions_.names), marks_generation_};
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  bool at_one_of(Names names) const {
    return std::any_of(names.begin(), names.end(),
                       [&](std::string_view name) { return tokens_.is_name(name); });
  }

  // Parses up to a tag that begins with one of `ends`, which is not consumed; none: up to the end.
  Body parse_body(Names ends) {
    Body body;
    while (!tokens_.is(Token::Kind::end)) {
      if (tokens_.is(Token::Kind::text)) {
        const Token text = tokens_.take();
        body.push_back(make(Statement::Kind::text, text.line));
        body.back().text = text.text;
      } else if (tokens_.is(Token::Kind::variable_begin)) {
        body.push_back(make(Statement::Kind::output, tokens_.take().line));
        body.back().value = parse_output();
        tokens_.expect(Token::Kind::variable_end);
      } else {
        tokens_.expect(Token::Kind::block_begin);
        if (tokens_.is(Token::Kind::name) && at_one_of(ends)) return body;
        body.push_back(parse_tag(ends));
      }
    }
    if (ends.size() > 0) {
      tokens_.refuse(
          fmt::format("Unexpected end of template. Jinja was looking for the following tags: {}.{}",
                      listed(ends), innermost()));
    }
    return body;
  }

  static std::string listed(Names names) {
    std::string text;
    for (const std::string_view name : names)
      text += (text.empty() ? "'" : " or '") + std::string(name) + "'";
    return text;
  }

  std::string innermost() const {
    if (open_.empty()) return "";
    return fmt::format(" The innermost block that needs to be closed is '{}', of line {}.",
                       open_.back().text, open_.back().line);
  }

  ExpressionPtr parse_output() {
    if (tokens_.is(Token::Kind::end)) tokens_.refuse("unexpected 'end of template'");
    return expressions_.parse_tuple();
  }

  static Statement make(Statement::Kind kind, int line) {
    Statement statement{};
    statement.kind = kind;
    statement.line = line;
    return statement;
  }

  Statement parse_tag(Names ends) {
    const Token name = tokens_.expect(Token::Kind::name);
    if (open_.size() >= kMaxNested)
      tokens_.refuse(fmt::format("tags nest deeper than {} levels", kMaxNested));
    open_.push_back(name);
    Statement statement = parse_named(name, ends);
    open_.pop_back();
    tokens_.expect(Token::Kind::block_end);
    return statement;
  }

  Statement parse_named(const Token& name, Names ends) {
    const std::string& tag = name.text;
    if (tag == "if") return parse_if(name.line);
    if (tag == "for") return parse_for(name.line);
    if (tag == "set") return parse_set(name.line);
    if (tag == "macro") return parse_macro(name.line);
    if (tag == "call") return parse_call(name.line);
    if (tag == "filter") return parse_filter(name.line);
    if (tag == "with") return parse_with(name.line);
    if (tag == "generation") return parse_generation(name.line);
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) tokens_.refuse(fmt::format("'{}' outside loop", tag), name.line);
      return make(tag == "break" ? Statement::Kind::leave : Statement::Kind::next, name.line);
    }
    if (tag == "print") return parse_print(name.line);
    if (tag == "autoescape") return parse_autoescape(name.line);
    for (const char* known : {"include", "import", "from", "extends", "block"}) {
      if (tag != known) continue;
      tokens_.refuse(fmt::format("the tag '{}' is not supported, because a chat template is a "
                                 "single file; supported are if, for, set, macro, call, filter, "
                                 "with, print, generation, raw, break and continue",
                                 tag),
                     name.line);
    }
    open_.pop_back();
    std::string text = fmt::format("Encountered unknown tag '{}'.", tag);
    if (ends.size() > 0)
      text += fmt::format(" Jinja was looking for the following tags: {}.{}", listed(ends),
                          innermost());
    tokens_.refuse(text, name.line);
  }

  // Parses the body up to the tag `end`, whose name is consumed.
  Body parse_block(Names end) {
    tokens_.expect(Token::Kind::block_end);
    Body body = parse_body(end);
    tokens_.take();
    return body;
  }

  Statement parse_if(int line) {
    Statement statement = make(Statement::Kind::condition, line);
    statement.branches.push_back({expressions_.parse_tuple(false), {}});
    while (true) {
      tokens_.expect(Token::Kind::block_end);
      statement.branches.back().body = parse_body({"elif", "else", "endif"});
      const std::string tag = tokens_.take().text;
      if (tag == "endif") return statement;
      if (tag == "elif") {
        statement.branches.push_back({expressions_.parse_tuple(false), {}});
        continue;
      }
      statement.branches.push_back({nullptr, parse_block({"endif"})});
      return statement;
    }
  }

  Statement parse_for(int line) {
    Statement statement = make(Statement::Kind::loop, line);
    if (tokens_.is_name("loop"))
      tokens_.refuse("Can't assign to special loop variable in for-loop target");
    statement.target = expressions_.parse_target(false);
    if (!tokens_.skip_name("in")) tokens_.unexpected("in");
    statement.value = expressions_.parse_tuple(false, "recursive");
    if (tokens_.skip_name("if")) statement.condition = expressions_.parse();
    statement.recursive = tokens_.skip_name("recursive");
    tokens_.expect(Token::Kind::block_end);
    ++loops_;
    statement.body = parse_body({"endfor", "else"});
    --loops_;
    if (tokens_.take().text == "else") statement.otherwise = parse_block({"endfor"});
    return statement;
  }

  ExpressionPtr captured(int line) {
    ExpressionPtr name = expressions_.make(Expression::Kind::name, line);
    name->name = kCaptured;
    return name;
  }

  Statement parse_set(int line) {
    Statement statement = make(Statement::Kind::set, line);
    statement.target = expressions_.parse_target(true);
    if (tokens_.skip_sign("=")) {
      statement.value = expressions_.parse_tuple();
      return statement;
    }
    statement.kind = Statement::Kind::set_block;
    statement.value = expressions_.parse_filters(captured(line), false);
    statement.body = parse_block({"endset"});
    return statement;
  }

  Statement parse_filter(int line) {
    Statement statement = make(Statement::Kind::filter, line);
    statement.value = expressions_.parse_filters(captured(line), true);
    statement.body = parse_block({"endfilter"});
    return statement;
  }

  Statement parse_with(int line) {
    Statement statement = make(Statement::Kind::with, line);
    while (!tokens_.is(Token::Kind::block_end)) {
      if (!statement.assignments.empty()) tokens_.expect_sign(",");
      Assignment assignment;
      assignment.target = expressions_.parse_target(false);
      tokens_.expect_sign("=");
      assignment.value = expressions_.parse();
      statement.assignments.push_back(std::move(assignment));
    }
    statement.body = parse_block({"endwith"});
    return statement;
  }

  // {% print a, b %}: writes the values one after another.
  Statement parse_print(int line) {
    Statement statement = make(Statement::Kind::with, line);
    while (!tokens_.is(Token::Kind::block_end)) {
      if (!statement.body.empty()) tokens_.expect_sign(",");
      Statement output = make(Statement::Kind::output, line);
      output.value = expressions_.parse();
      statement.body.push_back(std::move(output));
    }
    return statement;
  }

  Statement parse_autoescape(int line) {
    Statement statement = make(Statement::Kind::with, line);
    if (!tokens_.skip_name("false") && !tokens_.skip_name("False"))
      tokens_.refuse("autoescape is supported only with false, because a chat is not HTML", line);
    statement.body = parse_block({"endautoescape"});
    return statement;
  }

  void parse_parameters(Statement& statement) {
    tokens_.expect_sign("(");
    while (!tokens_.is_sign(")")) {
      if (!statement.parameters.empty()) tokens_.expect_sign(",");
      Parameter parameter;
      parameter.name = tokens_.expect(Token::Kind::name).text;
      if (tokens_.skip_sign("=")) {
        parameter.initial = expressions_.parse();
      } else if (!statement.parameters.empty() && statement.parameters.back().initial != nullptr) {
        tokens_.refuse("non-default argument follows default argument");
      }
      statement.parameters.push_back(std::move(parameter));
    }
    tokens_.expect_sign(")");
  }

  // Parses a body that is a separate function: loops around it cannot be left from within.
  Body parse_function_body(Statement& statement, Names end) {
    const int loops = std::exchange(loops_, 0);
    std::set<std::string> outer = std::exchange(expressions_.names, {});
    Body body = parse_block(end);
    statement.reads_varargs = expressions_.names.count("varargs") > 0;
    statement.reads_kwargs = expressions_.names.count("kwargs") > 0;
    statement.reads_caller = expressions_.names.count("caller") > 0;
    expressions_.names.merge(outer);
    loops_ = loops;
    return body;
  }

  Statement parse_macro(int line) {
    Statement statement = make(Statement::Kind::macro, line);
    statement.text = tokens_.expect(Token::Kind::name).text;
    parse_parameters(statement);
    statement.body = parse_function_body(statement, {"endmacro"});
    return statement;
  }

  Statement parse_call(int line) {
    Statement statement = make(Statement::Kind::call, line);
    statement.text = "caller";
    if (tokens_.is_sign("(")) parse_parameters(statement);
    statement.value = expressions_.parse();
    if (statement.value->kind != Expression::Kind::call) tokens_.refuse("expected call");
    statement.body = parse_function_body(statement, {"endcall"});
    return statement;
  }

  Statement parse_generation(int line) {
    marks_generation_ = true;
    Statement statement = make(Statement::Kind::generation, line);
    statement.body = parse_function_body(statement, {"endgeneration"});
    return statement;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  std::vector<Token> open_;
  bool marks_generation_ = false;
  int loops_ = 0;
};

}  // namespace

Parsed parse(std::string_view source, const std::string& name) {
  constexpr size_t kLongest = 4 << 20;
  if (source.size() > kLongest) {
    throw TemplateError(
        name, 1,
        fmt::format("the template has {} bytes; the limit is {}", source.size(), kLongest));
  }
  return StatementParser(source, name).run();
}

}  // namespace megatron::jinja
