// Splits a template into text and the tokens of its tags, with Jinja's whitespace rules: "-" and
// "+" at a tag, trim_blocks (removes the newline after a block tag) and lstrip_blocks (removes
// spaces before a block tag that begins a line). A final newline of the template is removed as
// well.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jinja/template.h"

namespace megatron::jinja {

struct Token {
  enum class Kind {
    text,
    variable_begin,
    variable_end,
    block_begin,
    block_end,
    name,
    string,
    integer,
    real,
    sign,
    end
  };
  Kind kind;
  std::string text;  // a string's value; a number's digits; name and sign as written
  int line;
};

// name: the template's name, for errors. Throws TemplateError.
std::vector<Token> tokenize(std::string_view source, const std::string& name);
// Description of a token for messages.
std::string describe(const Token& token);

// A cursor over a list of tokens.
class TokenStream {
 public:
  TokenStream(std::vector<Token> tokens, std::string name)
      : tokens_(std::move(tokens)), name_(std::move(name)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + (at_ + 1 < tokens_.size() ? 1 : 0)]; }
  bool is(Token::Kind kind) const { return current().kind == kind; }
  bool is_sign(std::string_view sign) const {
    return is(Token::Kind::sign) && current().text == sign;
  }
  bool is_name(std::string_view name) const {
    return is(Token::Kind::name) && current().text == name;
  }
  Token take() {
    Token token = current();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool skip_sign(std::string_view sign) { return is_sign(sign) && (take(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }
  void expect_sign(std::string_view sign) {
    if (!skip_sign(sign)) unexpected(sign);
  }
  Token expect(Token::Kind kind) {
    if (!is(kind)) unexpected(kind == Token::Kind::name ? "name" : describe({kind, "", 0}));
    return take();
  }

  [[noreturn]] void unexpected(std::string_view wanted) const {
    if (is(Token::Kind::end))
      refuse(fmt::format("unexpected end of template, expected '{}'.", wanted));
    refuse(fmt::format("expected token '{}', got '{}'", wanted, describe(current())));
  }
  [[noreturn]] void refuse(const std::string& reason) const { refuse(reason, current().line); }
  [[noreturn]] void refuse(const std::string& reason, int line) const {
    throw TemplateError(name_, line, reason);
  }

 private:
  std::vector<Token> tokens_;
  std::string name_;
  size_t at_ = 0;
};

}  // namespace megatron::jinja
