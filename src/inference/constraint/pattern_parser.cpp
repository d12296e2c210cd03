#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "inference/constraint/pattern.h"
#include "tokenizers/unicode/utf8.h"

namespace megatron::inference {
namespace {

using tokenizers::CharacterSet;
using tokenizers::RegexNode;
using Kind = RegexNode::Kind;

constexpr size_t kMaximumBytes = 10'000;
constexpr int kMaximumGroups = 100;
constexpr uint32_t kMaximumRepeat = 1000;

RegexNode node_of(CharacterSet set) { return {.kind = Kind::set, .set = std::move(set)}; }

class PatternParser {
 public:
  explicit PatternParser(std::string_view pattern) : pattern_(pattern) {}

  RegexNode parse() {
    tokenizers::check_utf8(pattern_, "the pattern");
    if (pattern_.size() > kMaximumBytes)
      refuse(fmt::format("it has {} bytes; the limit is {}", pattern_.size(), kMaximumBytes));
    RegexNode root = alternatives();
    if (!at_end()) refuse("')' without '('");
    return root;
  }

 private:
  [[noreturn]] void refuse(std::string_view reason) const {
    fail("the pattern '{}' at byte {}: {}",
         pattern_.size() > 200
             ? std::string(pattern_.substr(0, tokenizers::character_start_before(pattern_, 200))) +
                   "..."
             : std::string(pattern_),
         at_, reason);
  }
  bool at_end() const { return at_ == pattern_.size(); }
  char peek() const { return at_end() ? '\0' : pattern_[at_]; }
  bool take(std::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  char32_t next() {
    if (at_end()) refuse("it ends too early");
    const char32_t c = tokenizers::character_at(pattern_, at_);
    at_ += static_cast<size_t>(tokenizers::character_size(pattern_[at_]));
    return c;
  }

  RegexNode alternatives();
  RegexNode sequence();
  RegexNode atom();
  RegexNode group();
  RegexNode quantified(RegexNode node);
  bool count(uint32_t& minimum, uint32_t& maximum);
  CharacterSet bracket();
  char32_t bracket_character(bool& is_set, CharacterSet& set);
  bool escaped_set(CharacterSet& set);
  char32_t escaped_character();
  char32_t unicode_escape();
  char32_t hexadecimal(size_t digits);

  std::string_view pattern_;
  size_t at_ = 0;
  int depth_ = 0;
};

RegexNode PatternParser::alternatives() {
  if (++depth_ > kMaximumGroups)
    refuse(fmt::format("groups are nested deeper than {}", kMaximumGroups));
  RegexNode node{.kind = Kind::alternatives};
  do {
    node.parts.push_back(sequence());
  } while (take("|"));
  --depth_;
  return node.parts.size() == 1 ? std::move(node.parts[0]) : std::move(node);
}

RegexNode PatternParser::sequence() {
  RegexNode node{.kind = Kind::sequence};
  while (!at_end() && peek() != '|' && peek() != ')') node.parts.push_back(quantified(atom()));
  return node;
}

RegexNode PatternParser::atom() {
  if (peek() == '\\') {
    ++at_;
    CharacterSet set;
    if (escaped_set(set)) return node_of(std::move(set));
    const char32_t c = escaped_character();
    return node_of({c, c});
  }
  switch (const char32_t c = next()) {
    case '(': return group();
    case '[': return node_of(bracket());
    case '^': return {.kind = Kind::text_begin};
    case '$': return {.kind = Kind::text_end};
    case '.': {
      CharacterSet set('\n', '\n');
      set.add('\r', '\r');
      set.add(0x2028, 0x2029);
      set.complement();
      return node_of(std::move(set));
    }
    case '*':
    case '+':
    case '?': --at_; refuse("there is nothing to repeat");
    default: return node_of({c, c});
  }
}

RegexNode PatternParser::group() {
  if (take("?=") || take("?!") || take("?<=") || take("?<!"))
    refuse("look-ahead and look-behind are not supported; say what the text is, not what it isn't");
  if (take("?<")) {
    const size_t end = pattern_.find('>', at_);
    if (end == std::string_view::npos) refuse("a group's name does not end");
    at_ = end + 1;
  } else if (!take("?:") && peek() == '?') {
    refuse("groups are (..), (?:..) and (?<name>..); flags are not supported");
  }
  RegexNode node{.kind = Kind::sequence};
  node.parts.push_back(alternatives());
  if (!take(")")) refuse("a group does not end");
  return node;
}

// At '{': true and past it when it is a quantifier.
bool PatternParser::count(uint32_t& minimum, uint32_t& maximum) {
  size_t at = at_ + 1;
  const auto number = [&](uint32_t& value) {
    const size_t begin = at;
    value = 0;
    while (at < pattern_.size() && pattern_[at] >= '0' && pattern_[at] <= '9') {
      value = value * 10 + static_cast<uint32_t>(pattern_[at++] - '0');
      if (value > kMaximumRepeat) refuse(fmt::format("counts go up to {}", kMaximumRepeat));
    }
    return at > begin;
  };
  if (!number(minimum)) return false;
  maximum = minimum;
  if (at < pattern_.size() && pattern_[at] == ',') {
    ++at;
    if (!number(maximum)) maximum = RegexNode::kEndless;
  }
  if (at >= pattern_.size() || pattern_[at] != '}') return false;
  if (maximum < minimum)
    refuse(fmt::format("the count {{{},{}}} has a maximum below its minimum", minimum, maximum));
  at_ = at + 1;
  return true;
}

RegexNode PatternParser::quantified(RegexNode node) {
  RegexNode repeat{.kind = Kind::repeat};
  if (take("?")) {
    repeat.minimum = 0, repeat.maximum = 1;
  } else if (take("*")) {
    repeat.minimum = 0, repeat.maximum = RegexNode::kEndless;
  } else if (take("+")) {
    repeat.minimum = 1, repeat.maximum = RegexNode::kEndless;
  } else if (peek() != '{' || !count(repeat.minimum, repeat.maximum)) {
    return node;
  }
  if (node.kind == Kind::text_begin || node.kind == Kind::text_end)
    refuse("an anchor cannot be repeated");
  take("?");
  if (peek() == '*' || peek() == '+' || peek() == '?') refuse("there is nothing to repeat");
  repeat.parts.push_back(std::move(node));
  return repeat;
}

CharacterSet ascii_word() {
  CharacterSet set('0', '9');
  set.add('A', 'Z');
  set.add('_', '_');
  set.add('a', 'z');
  return set;
}

// White space and line terminators of ECMA-262.
CharacterSet script_space() {
  CharacterSet set('\t', '\r');
  for (const char32_t c : {0x20, 0xa0, 0x1680, 0x202f, 0x205f, 0x3000, 0xfeff}) set.add(c, c);
  set.add(0x2000, 0x200a);
  set.add(0x2028, 0x2029);
  return set;
}

// Behind '\': true and past it when it is a set.
bool PatternParser::escaped_set(CharacterSet& set) {
  const char c = peek();
  switch (c) {
    case 'd':
    case 'D': set = CharacterSet('0', '9'); break;
    case 'w':
    case 'W': set = ascii_word(); break;
    case 's':
    case 'S': set = script_space(); break;
    case 'p':
    case 'P': {
      const size_t end = pattern_.find('}', at_);
      if (pattern_.substr(at_ + 1, 1) != "{" || end == std::string_view::npos)
        refuse("a property is written \\p{NAME}");
      const std::string_view name = pattern_.substr(at_ + 2, end - at_ - 2);
      if (!CharacterSet::property(name, set))
        refuse(fmt::format("there is no property '{}' of Unicode", name));
      at_ = end;
      break;
    }
    default: return false;
  }
  ++at_;
  if (c == 'D' || c == 'W' || c == 'S' || c == 'P') set.complement();
  return true;
}

char32_t PatternParser::hexadecimal(size_t digits) {
  char32_t value = 0;
  for (size_t i = 0; i < digits; ++i) {
    const std::optional<char32_t> digit = tokenizers::hexadecimal_digit(next());
    if (!digit) refuse("a hexadecimal digit is missing");
    value = value * 16 + *digit;
  }
  return value;
}

// Behind "\u".
char32_t PatternParser::unicode_escape() {
  if (take("{")) {
    const size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos || end == at_ || end - at_ > 6)
      refuse("a character is written \\u{H} with 1 to 6 hexadecimal digits");
    const char32_t c = hexadecimal(end - at_);
    ++at_;
    if (c > CharacterSet::kLast) refuse("characters go up to \\u{10FFFF}");
    return c;
  }
  const char32_t first = hexadecimal(4);
  if (first < 0xd800 || first > 0xdfff) return first;
  char32_t second = 0;
  if (first < 0xdc00 && take("\\u")) second = hexadecimal(4);
  if (second < 0xdc00 || second > 0xdfff) refuse("a surrogate has no partner");
  return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
}

// Behind '\'.
char32_t PatternParser::escaped_character() {
  constexpr std::string_view kPunctuation = "^$\\.*+?()[]{}|/-!\"#%&',:;<=>@_`~ ";
  const char32_t c = next();
  switch (c) {
    case 't': return '\t';
    case 'n': return '\n';
    case 'v': return '\v';
    case 'f': return '\f';
    case 'r': return '\r';
    case 'x': return hexadecimal(2);
    case 'u': return unicode_escape();
    case 'c': {
      const char32_t letter = next() | 0x20;
      if (letter < 'a' || letter > 'z') refuse("a control character is written \\cA to \\cZ");
      return letter - 'a' + 1;
    }
    case '0':
      if (peek() >= '0' && peek() <= '9') refuse("octal escapes are not supported; write \\xHH");
      return 0;
    case 'b':
    case 'B': refuse("word boundaries are not supported");
    case 'k': refuse("back-references are not supported");
    default: break;
  }
  if (c >= '1' && c <= '9') refuse("back-references are not supported");
  if (c >= 0x80 || kPunctuation.find(static_cast<char>(c)) == std::string_view::npos)
    refuse("an escape that is not known");
  return c;
}

// One character of a bracket, or a set.
char32_t PatternParser::bracket_character(bool& is_set, CharacterSet& set) {
  is_set = false;
  const char32_t c = next();
  if (c != '\\') return c;
  if (take("b")) return '\b';
  is_set = escaped_set(set);
  return is_set ? 0 : escaped_character();
}

// Behind '['.
CharacterSet PatternParser::bracket() {
  const bool negated = take("^");
  CharacterSet all;
  if (peek() == ']') refuse("a class has no characters; write '\\]' for the bracket");
  while (!take("]")) {
    if (pattern_.substr(at_, 2) == "[:") refuse("classes in [:..:] are not supported; use \\p{..}");
    bool is_set = false;
    CharacterSet set;
    const char32_t first = bracket_character(is_set, set);
    if (is_set) {
      all.add(set);
      continue;
    }
    char32_t last = first;
    if (peek() == '-' && pattern_.substr(at_ + 1, 1) != "]") {
      ++at_;
      last = bracket_character(is_set, set);
      if (is_set) refuse("a range of characters cannot end with a class");
      if (last < first) refuse("a range of characters ends before it begins");
    }
    all.add(first, last);
  }
  if (negated) all.complement();
  return all;
}

}  // namespace

RegexNode parse_pattern(std::string_view pattern) { return PatternParser(pattern).parse(); }

}  // namespace megatron::inference
