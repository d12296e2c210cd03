#include "tokenizers/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kJitStack = size_t{4} << 20;
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr size_t kMaximumPattern = 64 * 1024;

// The inside of a character class for White_Space, and for everything else.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{"
    "205f}\\x{3000}";
constexpr std::string_view kNoSpace =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}";

[[noreturn]] void refuse(std::string_view pattern, size_t place, std::string_view reason) {
  fail("regular expression '{}', character {}: {}", pattern, place, reason);
}

// The escape at pattern[i] == '\\', rewritten.
void append_escape(std::string_view pattern, size_t i, bool in_class, std::string& out) {
  const auto put = [&](std::string_view inside, bool negate = false) {
    if (!in_class) out += negate ? "[^" : "[";
    out += inside;
    if (!in_class) out += ']';
  };
  switch (pattern[i + 1]) {
    case 's': return put(kSpace);
    case 'S': return put(kNoSpace);
    case 'w': return put(kWord);
    case 'W':
      if (in_class)
        refuse(pattern, i, "\\W in a character class is not supported; write \\P{...} instead");
      return put(kWord, true);
    case 'h':
    case 'H':
      refuse(pattern, i,
             "\\h means different things to different engines; write the characters out");
    default: out.append(pattern.substr(i, 2));
  }
}

std::string rewrite(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      append_escape(pattern, i, in_class, out);
      ++i;
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

struct RegexScratch::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, kJitStack, nullptr);
  State() {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  State(const State&) = delete;
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string pattern;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, bool literal) : code_(std::make_unique<Code>()) {
  MG_CHECK(pattern.size() <= kMaximumPattern, "a regular expression has {} bytes; the limit is {}",
           pattern.size(), kMaximumPattern);
  code_->pattern = pattern;
  const std::string rewritten = literal ? std::string(pattern) : rewrite(pattern);
  const uint32_t options =
      PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  size_t place = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                              options, &error, &place, nullptr);
  if (!code_->code) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    refuse(pattern, place, reinterpret_cast<const char*>(message));
  }
  code_->jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

bool Regex::find(std::string_view text, size_t from, Match& match, RegexScratch& scratch) const {
  RegexScratch::State& state = *scratch.state_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code_->jit) {
    found = pcre2_jit_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, state.data,
                            state.context);
  }
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                        state.data, state.context);
  }
  if (found == PCRE2_ERROR_NOMATCH) return false;
  MG_CHECK(found >= 0,
           "regular expression '{}' gave up on a text of {} bytes (PCRE2 error {}): it backtracks "
           "too much",
           code_->pattern, text.size(), found);
  const size_t* bounds = pcre2_get_ovector_pointer(state.data);
  match = {bounds[0], bounds[1]};
  MG_CHECK(match.begin >= from && match.begin <= match.end,
           "regular expression '{}' moves a match's start (\\K); that is not supported",
           code_->pattern);
  return true;
}

}  // namespace megatron::tokenizers
