// Cuts a template into text and the tokens of its tags, with Jinja's rules for whitespace: of "-"
// and "+" at a tag, trim_blocks (the newline behind a block tag goes) and lstrip_blocks (spaces in
// front of a block tag that begins a line go). A last newline of the template goes too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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

// name: of the template, for errors. Throws TemplateError.
std::vector<Token> tokenize(std::string_view source, const std::string& name);
// How messages name a token.
std::string describe(const Token& token);

}  // namespace megatron::jinja
