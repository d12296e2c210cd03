// Regular expressions of tokenizer files, in the dialects of Oniguruma (Hugging Face's engine) and
// of Perl's family (tiktoken's), with the character classes of Unicode 16: \s is the property
// White_Space, \w is that of UTS 18. Finds the leftmost match, trying alternatives in order. The
// constructs of common split patterns (listed in regex_syntax.h) run on the matcher of
// regex_program.h, the rest on PCRE2's JIT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace megatron::tokenizers {

enum class RegexSyntax : uint8_t {
  oniguruma,    // ^ and $ match at lines; the + of x{1,3}+ repeats
  perl,         // ^ and $ match at the text's ends; the + of x{1,3}+ makes it possessive
  ecma_script,  // for JSON schemas: parsed by parse_regex (regex_syntax.h), not matched by Regex
  literal,      // plain text
};

// Working memory of one thread for matching: created once, used with any Regex.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

class Regex {
 public:
  struct Match {
    size_t begin, end;
  };

  // Throws Error naming the pattern, the position and the reason. literal: the pattern is plain
  // text.
  explicit Regex(std::string_view pattern, bool literal = false)
      : Regex(pattern, literal ? RegexSyntax::literal : RegexSyntax::oniguruma) {}
  Regex(std::string_view pattern, RegexSyntax syntax);
  ~Regex();
  Regex(Regex&&) noexcept;

  // Finds the first match at or after `from` in valid UTF-8. Throws Error if matching exceeds the
  // limit of steps, which grows with the text.
  bool find(std::string_view text, size_t from, Match& match, RegexScratch& scratch) const;

  // True if the project's own matcher is used.
  bool is_program() const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace megatron::tokenizers
