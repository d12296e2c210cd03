#include "tokenizers/regex/regex_syntax.h"

#include <string>
#include <utility>

#include "tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

using Kind = RegexNode::Kind;

constexpr int kMaximumDepth = 50;
constexpr uint32_t kMaximumCount = 1000;
constexpr std::string_view kEscapable = "\\^$.|?*+()[]{}-/'\"!#%&,:;<=>@`~ _";

struct Outside {};  // thrown: the pattern is not in the subset

RegexNode node_of(CharacterSet set) { return {.kind = Kind::set, .set = std::move(set)}; }

class Parser {
 public:
  Parser(std::string_view pattern, RegexSyntax syntax) : pattern_(pattern), syntax_(syntax) {}

  RegexNode parse() {
    RegexNode root = alternatives();
    if (!at_end()) throw Outside();  // a ')' too many
    return root;
  }

 private:
  bool at_end() const { return at_ == pattern_.size(); }
  char peek() const { return at_end() ? '\0' : pattern_[at_]; }
  bool take(std::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  char32_t next() {
    if (at_end()) throw Outside();
    const char32_t c = character_at(pattern_, at_);
    at_ += static_cast<size_t>(character_size(pattern_[at_]));
    return c;
  }

  RegexNode alternatives();
  RegexNode sequence();
  RegexNode atom();
  RegexNode group();
  RegexNode quantified(RegexNode node);
  bool count(uint32_t& minimum, uint32_t& maximum);
  CharacterSet bracket();
  char32_t escaped_character(char32_t c);
  char32_t hexadecimal(size_t digits);
  bool escaped_set(char32_t c, bool in_bracket, CharacterSet& set);
  CharacterSet word(bool in_bracket) const;
  RegexNode character(char32_t c) {
    CharacterSet set(c, c);
    if (any_case_) set.add_other_cases();
    return node_of(std::move(set));
  }

  std::string_view pattern_;
  RegexSyntax syntax_;
  size_t at_ = 0;
  int depth_ = 0;
  bool any_case_ = false;
};

RegexNode Parser::alternatives() {
  if (++depth_ > kMaximumDepth) throw Outside();
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
    if (take("(?i)")) {
      // Behind other text, engines differ in how far it reaches.
      if (!node.parts.empty() && pattern_.find('|', at_) != std::string_view::npos) throw Outside();
      any_case_ = true;
      continue;
    }
    node.parts.push_back(quantified(atom()));
  }
  return node;
}

RegexNode Parser::atom() {
  switch (const char32_t c = next()) {
    case '(': return group();
    case '[': return node_of(bracket());
    case '.': {
      CharacterSet set('\n', '\n');
      set.complement();
      return node_of(std::move(set));
    }
    case '^':
      return {.kind = syntax_ == RegexSyntax::oniguruma ? Kind::line_begin : Kind::text_begin};
    case '$': return {.kind = syntax_ == RegexSyntax::oniguruma ? Kind::line_end : Kind::text_end};
    case '*':
    case '+':
    case '?': throw Outside();
    case '\\': {
      const char32_t escaped = next();
      if (escaped == 'A') return {.kind = Kind::text_begin};
      if (escaped == 'z') return {.kind = Kind::text_end};
      CharacterSet set;
      if (!escaped_set(escaped, false, set)) return character(escaped_character(escaped));
      if (any_case_) set.add_other_cases();
      return node_of(std::move(set));
    }
    default: return character(c);
  }
}

RegexNode Parser::group() {
  RegexNode node{.kind = Kind::sequence};
  const bool any_case = any_case_;
  if (take("?=")) {
    node.kind = Kind::look_ahead;
  } else if (take("?!")) {
    node.kind = Kind::look_ahead;
    node.negated = true;
  } else if (take("?>")) {
    node.kind = Kind::atomic;
  } else if (take("?i:")) {
    any_case_ = true;
  } else if (!take("?:") && peek() == '?') {
    throw Outside();
  }
  node.parts.push_back(alternatives());
  any_case_ = any_case;
  if (!take(")")) throw Outside();
  return node;
}

// At '{': true and past it when it is a quantifier.
bool Parser::count(uint32_t& minimum, uint32_t& maximum) {
  size_t at = at_ + 1;
  const auto number = [&](uint32_t& value) {
    const size_t begin = at;
    value = 0;
    while (at < pattern_.size() && pattern_[at] >= '0' && pattern_[at] <= '9') {
      value = value * 10 + static_cast<uint32_t>(pattern_[at++] - '0');
      if (value > kMaximumCount) throw Outside();
    }
    return at > begin;
  };
  const bool has_minimum = number(minimum);
  maximum = minimum;
  if (at < pattern_.size() && pattern_[at] == ',') {
    ++at;
    if (!number(maximum)) {
      if (!has_minimum) return false;
      maximum = RegexNode::kEndless;
    }
  } else if (!has_minimum) {
    return false;
  }
  if (at >= pattern_.size() || pattern_[at] != '}' || maximum < minimum) return false;
  at_ = at + 1;
  return true;
}

RegexNode Parser::quantified(RegexNode node) {
  while (!at_end()) {
    RegexNode repeat{.kind = Kind::repeat};
    bool counted = false;
    if (take("?")) {
      repeat.minimum = 0, repeat.maximum = 1;
    } else if (take("*")) {
      repeat.minimum = 0, repeat.maximum = RegexNode::kEndless;
    } else if (take("+")) {
      repeat.minimum = 1, repeat.maximum = RegexNode::kEndless;
    } else if (peek() == '{') {
      if (!count(repeat.minimum, repeat.maximum)) throw Outside();
      counted = true;
    } else {
      return node;
    }
    if (node.kind >= Kind::look_ahead) throw Outside();
    repeat.parts.push_back(std::move(node));
    node = std::move(repeat);
    if (peek() == '?') throw Outside();  // lazy
    // Behind {m,n}, Oniguruma reads '+' as one more quantifier.
    if (peek() == '+' && (!counted || syntax_ == RegexSyntax::perl)) {
      ++at_;
      RegexNode atomic{.kind = Kind::atomic};
      atomic.parts.push_back(std::move(node));
      node = std::move(atomic);
    }
  }
  return node;
}

// Oniguruma's \w has no joiners, and outside of brackets the superscripts and fractions of Latin-1.
CharacterSet Parser::word(bool in_bracket) const {
  CharacterSet set = CharacterSet::word();
  if (syntax_ != RegexSyntax::oniguruma) return set;
  CharacterSet others(0x200c, 0x200d);
  others.complement();
  set.intersect(others);
  if (in_bracket) return set;
  set.add(0xb2, 0xb3);
  set.add(0xb9, 0xb9);
  set.add(0xbc, 0xbe);
  return set;
}

bool Parser::escaped_set(char32_t c, bool in_bracket, CharacterSet& set) {
  bool negated = c == 'S' || c == 'W' || c == 'D' || c == 'P';
  switch (c) {
    case 's':
    case 'S': set = CharacterSet::white_space(); break;
    case 'w':
    case 'W': set = word(in_bracket); break;
    case 'd':
    case 'D': set = CharacterSet::of_categories(set_of(Category::Nd)); break;
    case 'p':
    case 'P': {
      if (!take("{")) throw Outside();
      if (take("^")) negated = !negated;
      const size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) throw Outside();
      if (!CharacterSet::property(pattern_.substr(at_, end - at_), set)) throw Outside();
      at_ = end + 1;
      break;
    }
    default: return false;
  }
  if (negated) set.complement();
  return true;
}

char32_t Parser::hexadecimal(size_t digits) {
  char32_t value = 0;
  for (size_t i = 0; i < digits; ++i) {
    const std::optional<char32_t> digit = hexadecimal_digit(next());
    if (!digit) throw Outside();
    value = value * 16 + *digit;
    if (value > CharacterSet::kLast) throw Outside();
  }
  return value;
}

char32_t Parser::escaped_character(char32_t c) {
  switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'f': return '\f';
    case 'a': return '\a';
    case 'e': return 0x1b;
    case 'x': {
      if (!take("{")) return hexadecimal(2);
      const size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos || end == at_ || end - at_ > 6) throw Outside();
      const char32_t value = hexadecimal(end - at_);
      ++at_;
      return value;
    }
    case 'u': return hexadecimal(4);
    default:
      if (c >= 0x80 || kEscapable.find(static_cast<char>(c)) == std::string_view::npos)
        throw Outside();
      return c;
  }
}

// Behind '['.
CharacterSet Parser::bracket() {
  if (++depth_ > kMaximumDepth) throw Outside();
  const bool negated = take("^");
  CharacterSet all, left;  // left: the operands of && before this one
  bool has_left = false;
  if (take("]")) all.add(']', ']');
  while (!take("]")) {
    if (peek() == '[' && pattern_.substr(at_ + 1, 1) == ":") throw Outside();
    if (take("&&")) {
      if (has_left) all.intersect(left);
      left = std::exchange(all, {});
      has_left = true;
      continue;
    }
    if (take("[")) {
      all.add(bracket());
      continue;
    }
    char32_t first = next();
    if (first == '\\') {
      CharacterSet set;
      const char32_t escaped = next();
      if (escaped_set(escaped, true, set)) {
        all.add(set);
        continue;
      }
      first = escaped_character(escaped);
    }
    char32_t last = first;
    if (peek() == '-' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
      ++at_;
      last = next();
      if (last == '[') throw Outside();
      if (last == '\\') {
        const char32_t escaped = next();
        CharacterSet set;
        if (escaped_set(escaped, true, set)) throw Outside();
        last = escaped_character(escaped);
      }
      if (last < first) throw Outside();
    }
    all.add(first, last);
  }
  if (has_left) all.intersect(left);
  if (any_case_) all.add_other_cases();
  if (negated) all.complement();
  --depth_;
  return all;
}

}  // namespace

std::optional<RegexNode> parse_regex(std::string_view pattern, RegexSyntax syntax) {
  try {
    return Parser(pattern, syntax).parse();
  } catch (const Outside&) {
    return std::nullopt;
  }
}

std::optional<char32_t> hexadecimal_digit(char32_t c) {
  const char32_t lower = c | 0x20;
  if (c >= '0' && c <= '9') return c - '0';
  if (lower >= 'a' && lower <= 'f') return lower - 'a' + 10;
  return {};
}

}  // namespace megatron::tokenizers
