// Regular expressions of tokenizer files, run by PCRE2's JIT. The files are written for Oniguruma;
// where the dialects differ, the pattern is rewritten: \s is the property White_Space, \w is UTS
// 18's (PCRE2 10.42 differs in both).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace megatron::tokenizers {

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
  explicit Regex(std::string_view pattern, bool literal = false);
  ~Regex();
  Regex(Regex&&) noexcept;

  // The first match at or after `from` in valid UTF-8. Throws Error when the match needs more than
  // the limit of steps.
  bool find(std::string_view text, size_t from, Match& match, RegexScratch& scratch) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace megatron::tokenizers
