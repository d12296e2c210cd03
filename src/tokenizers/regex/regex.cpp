#include "tokenizers/regex/regex.h"

#include <optional>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/regex/pcre_regex.h"
#include "tokenizers/regex/regex_program.h"
#include "tokenizers/regex/regex_state.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kMaximumPattern = size_t{64} * 1024;

RegexNode literal_node(std::string_view text) {
  RegexNode node{.kind = RegexNode::Kind::sequence};
  for (size_t i = 0; i < text.size(); i += static_cast<size_t>(character_size(text[i]))) {
    const char32_t c = character_at(text, i);
    node.parts.push_back({.kind = RegexNode::Kind::set, .set = CharacterSet(c, c)});
  }
  return node;
}

std::optional<RegexProgram> program_of(std::string_view pattern, RegexSyntax syntax) {
  if (syntax == RegexSyntax::literal) return RegexProgram::compile(literal_node(pattern));
  try {
    return RegexProgram::compile(parse_regex(pattern, syntax));
  } catch (const RegexRefusal&) {
    return std::nullopt;
  }
}

}  // namespace

struct RegexScratch::State {
  RegexState program;
  std::optional<PcreScratch> pcre;
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;

struct Regex::Code {
  std::string pattern;
  std::optional<RegexProgram> program;
  std::optional<PcreRegex> pcre;
};

Regex::Regex(std::string_view pattern, RegexSyntax syntax) : code_(std::make_unique<Code>()) {
  MG_CHECK(pattern.size() <= kMaximumPattern, "a regular expression has {} bytes; the limit is {}",
           pattern.size(), kMaximumPattern);
  check_utf8(pattern, "a regular expression");
  code_->pattern = pattern;
  code_->program = program_of(pattern, syntax);
  if (!code_->program) code_->pcre.emplace(pattern, syntax);
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

bool Regex::is_program() const { return code_->program.has_value(); }

bool Regex::find(std::string_view text, size_t from, Match& match, RegexScratch& scratch) const {
  RegexScratch::State& state = *scratch.state_;
  if (!code_->program) {
    if (!state.pcre) state.pcre.emplace();
    return code_->pcre->find(text, from, match, *state.pcre);
  }
  if (code_->program->find(text, from, match, state.program)) return true;
  MG_CHECK(!state.program.exhausted,
           "regular expression '{}' gave up on a text of {} bytes: it backtracks too much",
           code_->pattern, text.size());
  return false;
}

}  // namespace megatron::tokenizers
