#include "tokenizers/regex/regex_syntax.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "base/utf8.h"

namespace megatron::tokenizers {
namespace {

using Kind = RegexNode::Kind;

constexpr uint32_t kMaximumCount = 1000;
constexpr std::string_view kEscapable = "\\^$.|?*+()[]{}-/'\"!#%&,:;<=>@`~ _";

RegexNode node_of(CharacterSet set) { return {.kind = Kind::set, .set = std::move(set)}; }

class Parser {
 public:
  Parser(std::string_view pattern, RegexSyntax syntax)
      : pattern_(pattern),
        oniguruma_(syntax == RegexSyntax::oniguruma),
        script_(syntax == RegexSyntax::ecma_script),
        maximum_depth_(script_ ? 100 : 50) {}

  RegexNode parse() {
    RegexNode root = alternatives();
    if (!at_end()) refuse("')' without '('");
    return root;
  }

 private:
  [[noreturn]] void refuse(std::string reason) const { throw RegexRefusal{at_, std::move(reason)}; }
  bool at_end() const { return at_ == pattern_.size(); }
  char peek() const { return at_end() ? '\0' : pattern_[at_]; }
  bool take(std::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  char32_t next() {
    if (at_end()) refuse("it ends too early");
    return next_character(pattern_, at_);
  }
  void deepen() {
    if (++depth_ > maximum_depth_)
      refuse(fmt::format("groups are nested deeper than {}", maximum_depth_));
  }

  RegexNode alternatives();
  RegexNode sequence();
  RegexNode atom();
  RegexNode group();
  RegexNode quantified(RegexNode node);
  bool count(uint32_t& minimum, uint32_t& maximum);
  CharacterSet bracket();
  std::optional<char32_t> bracket_character(CharacterSet& set);
  bool escaped_set(bool in_bracket, CharacterSet& set);
  CharacterSet any() const;
  CharacterSet space() const;
  CharacterSet word(bool in_bracket) const;
  char32_t escaped_character();
  char32_t escaped_script_character(char32_t c);
  char32_t hexadecimal(size_t digits);
  char32_t hexadecimal_in_braces();

  std::string_view pattern_;
  bool oniguruma_, script_;
  int maximum_depth_;
  size_t at_ = 0;
  int depth_ = 0;
  bool any_case_ = false;
};

RegexNode Parser::alternatives() {
  deepen();
  const bool any_case = any_case_;
  RegexNode node{.kind = Kind::alternatives};
  do {
    node.parts.push_back(sequence());
  } while (take("|"));
  any_case_ = any_case;
  --depth_;
  return node.parts.size() == 1 ? std::move(node.parts[0]) : std::move(node);
}

RegexNode Parser::sequence() {
  RegexNode node{.kind = Kind::sequence};
  while (!at_end() && peek() != '|' && peek() != ')') {
    if (!script_ && take("(?i)")) {
      if (!node.parts.empty() && pattern_.find('|', at_) != std::string_view::npos)
        refuse(
            "(?i) is supported only at the beginning, because engines differ in how far it reaches "
            "elsewhere");
      any_case_ = true;
      continue;
    }
    node.parts.push_back(quantified(atom()));
  }
  return node;
}

RegexNode Parser::atom() {
  CharacterSet set;
  switch (const char32_t c = next()) {
    case '(': return group();
    case '[': return node_of(bracket());
    case '.': return node_of(any());
    case '^': return {.kind = oniguruma_ ? Kind::line_begin : Kind::text_begin};
    case '$': return {.kind = oniguruma_ ? Kind::line_end : Kind::text_end};
    case '*':
    case '+':
    case '?': --at_; refuse("there is nothing to repeat");
    case '\\': {
      if (!script_ && take("A")) return {.kind = Kind::text_begin};
      if (!script_ && take("z")) return {.kind = Kind::text_end};
      if (escaped_set(false, set)) break;
      const char32_t escaped = escaped_character();
      set.add(escaped, escaped);
      break;
    }
    default: set.add(c, c);
  }
  if (any_case_) set.add_other_cases();
  return node_of(std::move(set));
}

RegexNode Parser::group() {
  RegexNode node{.kind = Kind::sequence};
  const bool any_case = any_case_;
  if (script_ && (take("?=") || take("?!") || take("?<=") || take("?<!")))
    refuse("look-ahead and look-behind are not supported; rewrite the pattern without them");
  if (script_ && take("?<")) {
    const size_t end = pattern_.find('>', at_);
    if (end == std::string_view::npos) refuse("a group's name is not terminated");
    at_ = end + 1;
  } else if (!script_ && take("?=")) {
    node.kind = Kind::look_ahead;
  } else if (!script_ && take("?!")) {
    node.kind = Kind::look_ahead;
    node.negated = true;
  } else if (!script_ && take("?>")) {
    node.kind = Kind::atomic;
  } else if (!script_ && take("?i:")) {
    any_case_ = true;
  } else if (!take("?:") && peek() == '?') {
    refuse("groups are (..), (?:..) and (?<name>..); flags are not supported");
  }
  node.parts.push_back(alternatives());
  any_case_ = any_case;
  if (!take(")")) refuse("a group is not closed");
  return node;
}

// At '{': returns true and skips it if it is a quantifier.
bool Parser::count(uint32_t& minimum, uint32_t& maximum) {
  size_t at = at_ + 1;
  const auto number = [&](uint32_t& value) {
    const size_t begin = at;
    value = 0;
    while (at < pattern_.size() && pattern_[at] >= '0' && pattern_[at] <= '9') {
      value = value * 10 + static_cast<uint32_t>(pattern_[at++] - '0');
      if (value > kMaximumCount) refuse(fmt::format("counts go up to {}", kMaximumCount));
    }
    return at > begin;
  };
  const bool has_minimum = number(minimum);
  if (!has_minimum && (script_ || pattern_.substr(at, 1) != ",")) return false;
  maximum = minimum;
  if (pattern_.substr(at, 1) == ",") {
    ++at;
    if (!number(maximum)) {
      if (!has_minimum) return false;
      maximum = RegexNode::kEndless;
    }
  }
  if (pattern_.substr(at, 1) != "}") return false;
  if (maximum < minimum)
    refuse(fmt::format("the count {{{},{}}} has a maximum below its minimum", minimum, maximum));
  at_ = at + 1;
  return true;
}

RegexNode Parser::quantified(RegexNode node) {
  while (!at_end()) {
    RegexNode repeat{.kind = Kind::repeat, .maximum = RegexNode::kEndless};
    bool counted = false;
    if (take("?")) {
      repeat.maximum = 1;
    } else if (take("+")) {
      repeat.minimum = 1;
    } else if (peek() == '{') {
      counted = count(repeat.minimum, repeat.maximum);
      if (!counted && !script_) refuse("'{' does not begin a count");
      if (!counted) return node;
    } else if (!take("*")) {
      return node;
    }
    if (node.kind >= Kind::look_ahead) refuse("an anchor cannot be repeated");
    repeat.parts.push_back(std::move(node));
    node = std::move(repeat);
    if (script_) {
      take("?");
      if (peek() == '*' || peek() == '+' || peek() == '?') refuse("there is nothing to repeat");
      return node;
    }
    if (peek() == '?') refuse("lazy quantifiers are not supported");
    // After {m,n}, Oniguruma reads '+' as another quantifier.
    if (peek() == '+' && (!counted || !oniguruma_)) {
      ++at_;
      RegexNode atomic{.kind = Kind::atomic};
      atomic.parts.push_back(std::move(node));
      node = std::move(atomic);
    }
  }
  return node;
}

CharacterSet Parser::any() const {
  CharacterSet set('\n', '\n');
  if (script_) {
    set.add('\r', '\r');
    set.add(0x2028, 0x2029);
  }
  set.complement();
  return set;
}

CharacterSet Parser::space() const {
  if (!script_) return CharacterSet::white_space();
  // White space and line terminators of ECMA-262.
  CharacterSet set('\t', '\r');
  for (const char32_t c : {0x20, 0xa0, 0x1680, 0x202f, 0x205f, 0x3000, 0xfeff}) set.add(c, c);
  set.add(0x2000, 0x200a);
  set.add(0x2028, 0x2029);
  return set;
}

// Oniguruma's \w has no joiners; outside brackets it has the superscripts and fractions of Latin-1.
CharacterSet Parser::word(bool in_bracket) const {
  if (script_) {
    CharacterSet ascii('0', '9');
    ascii.add('A', 'Z');
    ascii.add('_', '_');
    ascii.add('a', 'z');
    return ascii;
  }
  CharacterSet set = CharacterSet::word();
  if (!oniguruma_) return set;
  CharacterSet others(0x200c, 0x200d);
  others.complement();
  set.intersect(others);
  if (in_bracket) return set;
  set.add(0xb2, 0xb3);
  set.add(0xb9, 0xb9);
  set.add(0xbc, 0xbe);
  return set;
}

// After '\': returns true and skips the escape if it is a set.
bool Parser::escaped_set(bool in_bracket, CharacterSet& set) {
  const char c = peek();
  bool negated = c == 'S' || c == 'W' || c == 'D' || c == 'P';
  switch (c) {
    case 's':
    case 'S': set = space(); break;
    case 'w':
    case 'W': set = word(in_bracket); break;
    case 'd':
    case 'D':
      set = script_ ? CharacterSet('0', '9') : CharacterSet::of_categories(set_of(Category::Nd));
      break;
    case 'p':
    case 'P': {
      const size_t end = pattern_.find('}', at_);
      if (pattern_.substr(at_ + 1, 1) != "{" || end == std::string_view::npos)
        refuse("a property is written \\p{NAME}");
      std::string_view name = pattern_.substr(at_ + 2, end - at_ - 2);
      if (!script_ && name.starts_with("^")) {
        negated = !negated;
        name.remove_prefix(1);
      }
      if (!CharacterSet::property(name, set))
        refuse(fmt::format("there is no property '{}' of Unicode", name));
      at_ = end;
      break;
    }
    default: return false;
  }
  ++at_;
  if (negated) set.complement();
  return true;
}

char32_t Parser::hexadecimal(size_t digits) {
  char32_t value = 0;
  for (size_t i = 0; i < digits; ++i) {
    const std::optional<char32_t> digit = hexadecimal_digit(next());
    if (!digit) refuse("a hexadecimal digit is missing");
    value = value * 16 + *digit;
  }
  return value;
}

// Called after '{'.
char32_t Parser::hexadecimal_in_braces() {
  const size_t end = pattern_.find('}', at_);
  if (end == std::string_view::npos || end == at_ || end - at_ > 6)
    refuse("a character is written \\u{H} with 1 to 6 hexadecimal digits");
  const char32_t c = hexadecimal(end - at_);
  ++at_;
  if (c > CharacterSet::kLast) refuse("characters go up to \\u{10FFFF}");
  return c;
}

// Called after '\'.
char32_t Parser::escaped_character() {
  switch (const char32_t c = next()) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'f': return '\f';
    case 'x': return !script_ && take("{") ? hexadecimal_in_braces() : hexadecimal(2);
    default:
      if (c < 0x80 && kEscapable.find(static_cast<char>(c)) != kEscapable.npos) return c;
      if (script_) return escaped_script_character(c);
      if (c == 'u') return hexadecimal(4);
      if (c == 'a') return '\a';
      if (c == 'e') return 0x1b;
      refuse("unknown escape");
  }
}

// Escapes that only ECMA-262 has, or that have another meaning there.
char32_t Parser::escaped_script_character(char32_t c) {
  switch (c) {
    case 'v': return '\v';
    case 'u': {
      if (take("{")) return hexadecimal_in_braces();
      const char32_t first = hexadecimal(4);
      if (first < 0xd800 || first > 0xdfff) return first;
      std::optional<char32_t> joined;
      if (first < 0xdc00 && take("\\u")) joined = joined_surrogates(first, hexadecimal(4));
      if (!joined) refuse("a surrogate has no partner");
      return *joined;
    }
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
    default:
      if (c == 'k' || (c >= '1' && c <= '9')) refuse("back-references are not supported");
      refuse("unknown escape");
  }
}

// Reads one character of a bracket; returns nullopt if it is a set.
std::optional<char32_t> Parser::bracket_character(CharacterSet& set) {
  const char32_t c = next();
  if (c != '\\') return c;
  if (script_ && take("b")) return '\b';
  if (escaped_set(true, set)) return std::nullopt;
  return escaped_character();
}

// Called after '['.
CharacterSet Parser::bracket() {
  if (!script_) deepen();  // those of ECMA-262 do not nest
  const bool negated = take("^");
  CharacterSet all, left;  // left: operands of && before the current one
  bool has_left = false;
  if (take("]")) {
    if (script_) {
      --at_;
      refuse("a class has no characters; write '\\]' for the bracket");
    }
    all.add(']', ']');
  }
  while (!take("]")) {
    if (pattern_.substr(at_, 2) == "[:") refuse("classes in [:..:] are not supported; use \\p{..}");
    if (!script_ && take("&&")) {
      if (has_left) all.intersect(left);
      left = std::exchange(all, {});
      has_left = true;
      continue;
    }
    if (!script_ && take("[")) {
      all.add(bracket());
      continue;
    }
    CharacterSet set;
    const std::optional<char32_t> first = bracket_character(set);
    if (!first) {
      all.add(set);
      continue;
    }
    std::optional<char32_t> last = first;
    if (peek() == '-' && pattern_.substr(at_ + 1, 1) != "]") {
      ++at_;
      if (!script_ && peek() == '[') refuse("a range of characters cannot end with a class");
      last = bracket_character(set);
      if (!last) refuse("a range of characters cannot end with a class");
      if (*last < *first) refuse("the end of a character range is below its beginning");
    }
    all.add(*first, *last);
  }
  if (has_left) all.intersect(left);
  if (any_case_) all.add_other_cases();
  if (negated) all.complement();
  if (!script_) --depth_;
  return all;
}

}  // namespace

RegexNode parse_regex(std::string_view pattern, RegexSyntax syntax) {
  return Parser(pattern, syntax).parse();
}

std::optional<char32_t> hexadecimal_digit(char32_t c) {
  const char32_t lower = c | 0x20;
  if (c >= '0' && c <= '9') return c - '0';
  if (lower >= 'a' && lower <= 'f') return lower - 'a' + 10;
  return {};
}

}  // namespace megatron::tokenizers
