// Regular expressions of tokenizer files, as Oniguruma (Hugging Face's engine) and Perl's family
// (tiktoken's) read them, with the classes of Unicode 16: \s is the property White_Space, \w is UTS
// 18's. Leftmost match, first alternative first. What split patterns are made of runs on a matcher
// of our own (regex_syntax.h has the list), the rest on PCRE2's JIT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace megatron::tokenizers {

enum class RegexSyntax : uint8_t {
  oniguruma,    // ^ and $ hold at lines; the + of x{1,3}+ repeats
  perl,         // ^ and $ hold at the text's ends; the + of x{1,3}+ makes it possessive
  ecma_script,  // JSON schemas': read by parse_regex (regex_syntax.h), not matched by Regex
  literal,      // plain text
};

// What one thread needs to match: made once, used by any Regex.
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

  // Throws Error naming the pattern, the place and the reason. literal: the pattern is plain text.
  explicit Regex(std::string_view pattern, bool literal = false)
      : Regex(pattern, literal ? RegexSyntax::literal : RegexSyntax::oniguruma) {}
  Regex(std::string_view pattern, RegexSyntax syntax);
  ~Regex();
  Regex(Regex&&) noexcept;

  // The first match at or after `from` in valid UTF-8. Throws Error when the match needs more than
  // the limit of steps, which grows with the text.
  bool find(std::string_view text, size_t from, Match& match, RegexScratch& scratch) const;

  // Whether the matcher is our own.
  bool is_program() const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace megatron::tokenizers
