#include "tokenizers/regex/pcre_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/core.h>
#include <pcre2.h>

#include "base/error.h"
#include "tokenizers/unicode/character_set.h"
#include "tokenizers/unicode/unicode.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kJitStack = size_t{4} << 20;
constexpr uint32_t kMatchLimit = 10'000'000;

// Contents of a character class for White_Space, and for its complement.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{"
    "205f}\\x{3000}";
constexpr std::string_view kNoSpace =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kJoiners = "\\x{200c}\\x{200d}";
constexpr std::string_view kLatinNumbers = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

[[noreturn]] void refuse(std::string_view pattern, size_t place, std::string_view reason) {
  fail("regular expression '{}', character {}: {}", pattern, place, reason);
}

// Writes ranges as the contents of a class.
std::string spell(const CharacterSet& set) {
  std::string out;
  for (const CharacterSet::Range& range : set.ranges())
    out += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(range.first),
                       static_cast<uint32_t>(range.last));
  return out;
}

// The characters of `set` that PCRE2's Unicode 14 lacks.
CharacterSet later_characters(const CharacterSet& set) {
  CharacterSet later;
  for (const CharacterSet::Range& range : set.ranges()) {
    for (char32_t c = range.first; c <= range.last; ++c) {
      if (!is_assigned_in(c, 14) && category(c) != Category::Cn) later.add(c, c);
    }
  }
  return later;
}

// \p{..} at pattern[i]: its length and, for a general category, the inside of a class.
size_t read_property(std::string_view pattern, size_t i, bool& negated, std::string& inside) {
  const bool braces = pattern.substr(i + 2, 1) == "{";
  const size_t end = braces ? pattern.find('}', i) : i + 2;
  if (end == std::string_view::npos || end >= pattern.size()) return 2;
  std::string_view name = pattern.substr(i + (braces ? 3 : 2), braces ? end - i - 3 : 1);
  negated = pattern[i + 1] == 'P';
  if (name.starts_with('^')) negated = !negated, name.remove_prefix(1);
  CharacterSet set;
  if (CharacterSet::general_category(name, set))
    inside = fmt::format("\\p{{{}}}", name) + spell(later_characters(set));
  return end + 1 - i;
}

size_t append_property(std::string_view pattern, size_t i, bool in_class, std::string& out) {
  bool negated = false;
  std::string inside;
  const size_t size = read_property(pattern, i, negated, inside);
  if (inside.empty()) {
    out.append(pattern.substr(i, size));
  } else if (!in_class) {
    out += (negated ? "[^" : "[") + inside + "]";
  } else if (!negated) {
    out += inside;
  } else {
    CharacterSet set;
    const size_t name = inside.find('{') + 1;
    CharacterSet::general_category(inside.substr(name, inside.find('}') - name), set);
    set.complement();
    out += spell(set);
  }
  return size;
}

// Contents of a character class for \w; see Parser::word in regex_syntax.cpp.
std::string word(RegexSyntax syntax, bool in_class) {
  const std::string_view rest = syntax == RegexSyntax::perl ? kJoiners
                                : in_class                  ? std::string_view()
                                                            : kLatinNumbers;
  return std::string(kWord) + std::string(rest);
}

// The escape at pattern[i] == '\\', rewritten. Returns its length.
size_t append_escape(std::string_view pattern, size_t i, RegexSyntax syntax, bool in_class,
                     std::string& out) {
  const auto put = [&](std::string_view inside, bool negate = false) {
    if (!in_class) out += negate ? "[^" : "[";
    out += inside;
    if (!in_class) out += ']';
    return size_t{2};
  };
  switch (pattern[i + 1]) {
    case 's': return put(kSpace);
    case 'S': return put(kNoSpace);
    case 'w': return put(word(syntax, in_class));
    case 'p':
    case 'P': return append_property(pattern, i, in_class, out);
    case 'W':
      if (in_class)
        refuse(pattern, i, "\\W in a character class is not supported; write \\P{...} instead");
      return put(word(syntax, in_class), true);
    case 'h':
    case 'H':
      refuse(pattern, i,
             "\\h has different meanings in different engines; list the characters instead");
    default: out.append(pattern.substr(i, 2)); return 2;
  }
}

std::string rewrite(std::string_view pattern, RegexSyntax syntax) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      i += append_escape(pattern, i, syntax, in_class, out) - 1;
      continue;
    }
    if (!in_class && c == '[') {
      in_class = true;
      out += c;
      if (pattern.substr(i + 1, 1) == "^") out += pattern[++i];
      if (pattern.substr(i + 1, 1) == "]") out += '\\', out += pattern[++i];
      continue;
    }
    if (in_class && c == '[' && pattern.substr(i + 1, 1) == ":") {
      const size_t end = pattern.find(":]", i + 2);
      if (end == std::string_view::npos) refuse(pattern, i, "'[:' without ':]'");
      out.append(pattern.substr(i, end + 2 - i));
      i = end + 1;
      continue;
    }
    if (in_class && c == '[')
      refuse(pattern, i, "a character class inside another is not supported");
    if (in_class && pattern.substr(i, 2) == "&&")
      refuse(pattern, i, "'&&' in a character class is not supported");
    if (in_class && c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

PcreScratch::PcreScratch()
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(32 * 1024, kJitStack, nullptr)) {
  pcre2_set_match_limit(context_, kMatchLimit);
  pcre2_jit_stack_assign(context_, nullptr, stack_);
}
PcreScratch::~PcreScratch() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
  pcre2_jit_stack_free(stack_);
}

PcreRegex::PcreRegex(std::string_view pattern, RegexSyntax syntax) : pattern_(pattern) {
  const bool literal = syntax == RegexSyntax::literal;
  const std::string rewritten = literal ? pattern_ : rewrite(pattern, syntax);
  uint32_t options = PCRE2_UTF;
  options |= literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  if (syntax == RegexSyntax::oniguruma) options |= PCRE2_MULTILINE;
  if (syntax == RegexSyntax::perl) options |= PCRE2_DOLLAR_ENDONLY;
  int error = 0;
  size_t place = 0;
  code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(), options,
                        &error, &place, nullptr);
  if (!code_) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    refuse(rewritten, place, reinterpret_cast<const char*>(message));
  }
  jit_ = pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE) == 0;
}
PcreRegex::~PcreRegex() { pcre2_code_free(code_); }

bool PcreRegex::match(std::string_view text, size_t from, pcre2_match_data* data,
                      PcreScratch& scratch) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (jit_) {
    found = pcre2_jit_match(code_, subject, text.size(), from, PCRE2_NO_UTF_CHECK, data,
                            scratch.context_);
  }
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(code_, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                        scratch.context_);
  }
  if (found == PCRE2_ERROR_NOMATCH) return false;
  MG_CHECK(found >= 0,
           "regular expression '{}' gave up on a text of {} bytes (PCRE2 error {}): it backtracks "
           "too much",
           pattern_, text.size(), found);
  const size_t* bounds = pcre2_get_ovector_pointer(data);
  MG_CHECK(bounds[0] >= from && bounds[0] <= bounds[1],
           "regular expression '{}' moves a match's start (\\K); that is not supported", pattern_);
  return true;
}

bool PcreRegex::find(std::string_view text, size_t from, Regex::Match& found,
                     PcreScratch& scratch) const {
  if (!match(text, from, scratch.data_, scratch)) return false;
  const size_t* bounds = pcre2_get_ovector_pointer(scratch.data_);
  found = {bounds[0], bounds[1]};
  return true;
}

bool PcreRegex::find_groups(std::string_view text, size_t from,
                            std::vector<Regex::Match>& groups) const {
  PcreScratch scratch;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code_, nullptr), pcre2_match_data_free);
  if (!match(text, from, data.get(), scratch)) return false;
  const size_t* bounds = pcre2_get_ovector_pointer(data.get());
  groups.clear();
  for (uint32_t i = 0; i < pcre2_get_ovector_count(data.get()); ++i)
    groups.push_back({bounds[2 * i], bounds[2 * i + 1]});
  return true;
}

}  // namespace megatron::tokenizers
