// Regular expressions run by PCRE2's JIT. Its dialect and Unicode version differ from those that
// tokenizer files are written for, so the pattern is rewritten first: \s becomes the property
// White_Space, \w that of UTS 18, and \p{..} of general categories includes the characters of
// Unicode 15 and 16.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/regex/regex.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace megatron::tokenizers {

class PcreScratch {
 public:
  PcreScratch();
  ~PcreScratch();
  PcreScratch(const PcreScratch&) = delete;
  PcreScratch& operator=(const PcreScratch&) = delete;

 private:
  friend class PcreRegex;
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
};

class PcreRegex {
 public:
  // Throws Error naming the pattern, the place and the reason.
  PcreRegex(std::string_view pattern, RegexSyntax syntax);
  ~PcreRegex();
  PcreRegex(const PcreRegex&) = delete;
  PcreRegex& operator=(const PcreRegex&) = delete;

  // As Regex::find.
  bool find(std::string_view text, size_t from, Regex::Match& match, PcreScratch& scratch) const;

  // The same, followed by the pattern's groups after the whole match; a group that does not take
  // part is npos to npos.
  bool find_groups(std::string_view text, size_t from, std::vector<Regex::Match>& groups) const;

 private:
  bool match(std::string_view text, size_t from, pcre2_real_match_data_8* data,
             PcreScratch& scratch) const;

  std::string pattern_;
  pcre2_real_code_8* code_ = nullptr;
  bool jit_ = false;
};

}  // namespace megatron::tokenizers
