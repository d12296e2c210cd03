#include "jinja/lexer.h"

#include <algorithm>

#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

bool is_decimal_digit(char c) { return c >= '0' && c <= '9'; }

bool is_octal_digit(char c) { return c >= '0' && c <= '7'; }

int hex_value(char c) {
  if (is_decimal_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

std::string with_plain_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    const bool pair = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!pair) text += source[i] == '\r' ? '\n' : source[i];
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string source, const std::string& name) : source_(std::move(source)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag();
      const std::string_view text = std::string_view(source_).substr(at_, tag - at_);
      if (tag == source_.size()) {
        put(Token::Kind::text, std::string(text));
        at_ = tag;
        break;
      }
      const char kind = source_[tag + 1];
      put_text(text, tag + 2, kind == '{');
      move_to(tag + 2);
      const bool sign = at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+');
      if (kind == '#') {
        skip_comment();
      } else {
        if (sign) move_to(at_ + 1);
        kind == '{' ? lex_tag(Token::Kind::variable_begin) : lex_block();
      }
    }
    put(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw TemplateError(name_, line_, reason);
  }

  void put(Token::Kind kind, std::string text) {
    if (kind == Token::Kind::text && text.empty()) return;
    tokens_.push_back({kind, std::move(text), line_});
  }

  void move_to(size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    at_ = at;
  }

  size_t next_tag() const {
    for (size_t at = source_.find('{', at_); at != std::string::npos;
         at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() &&
          std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos)
        return at;
    }
    return source_.size();
  }

  bool starts(std::string_view text, size_t at) const {
    return source_.compare(at, text.size(), text) == 0;
  }

  // Adds the text before a tag whose sign, if any, is at byte `sign`.
  void put_text(std::string_view text, size_t sign, bool variable) {
    const char mark = sign < source_.size() ? source_[sign] : '\0';
    if (mark == '-') {
      text = strip_space(text, false, true);
    } else if (mark != '+' && !variable) {
      const size_t newline = text.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      const bool begins_line = line > 0 || line_starting_;
      if (begins_line && strip_space(text.substr(line), true, false).empty())
        text = text.substr(0, line);
    }
    put(Token::Kind::text, std::string(text));
  }

  size_t behind_space(size_t at) const {
    const std::string_view rest = std::string_view(source_).substr(at);
    return source_.size() - strip_space(rest, true, false).size();
  }

  // If a tag's end `close` ("%}", "#}"), possibly with a sign, is at `at`, returns the offset after
  // it and the whitespace that it removes; else 0.
  size_t end_of_tag(std::string_view close, size_t at, bool may_keep, bool trims) const {
    if (starts("-", at) && starts(close, at + 1)) return behind_space(at + 1 + close.size());
    if (may_keep && starts("+", at) && starts(close, at + 1)) return at + 1 + close.size();
    if (!starts(close, at)) return 0;
    const size_t behind = at + close.size();
    return trims && behind < source_.size() && source_[behind] == '\n' ? behind + 1 : behind;
  }

  void finish_tag(size_t behind) {
    line_starting_ = source_[behind - 1] == '\n';
    move_to(behind);
  }

  void skip_comment() {
    for (size_t at = at_; at < source_.size(); ++at) {
      const size_t behind = end_of_tag("#}", at, true, true);
      if (behind == 0) continue;
      finish_tag(behind);
      return;
    }
    refuse("Missing end of comment tag");
  }

  void lex_block() {
    const size_t word = behind_space(at_);
    if (starts("raw", word)) {
      const size_t close = behind_space(word + 3);
      const size_t behind = end_of_tag("%}", close, false, false);
      if (behind != 0) {
        move_to(behind);
        lex_raw();
        return;
      }
    }
    lex_tag(Token::Kind::block_begin);
  }

  void lex_raw() {
    line_starting_ = source_[at_ - 1] == '\n';
    for (size_t at = source_.find("{%", at_); at != std::string::npos;
         at = source_.find("{%", at + 1)) {
      const bool sign = starts("-", at + 2) || starts("+", at + 2);
      const size_t word = behind_space(at + 2 + (sign ? 1 : 0));
      if (!starts("endraw", word)) continue;
      const size_t behind = end_of_tag("%}", behind_space(word + 6), true, true);
      if (behind == 0) continue;
      put_text(std::string_view(source_).substr(at_, at - at_), at + 2, false);
      finish_tag(behind);
      return;
    }
    refuse("Missing end of raw directive");
  }

  void lex_tag(Token::Kind begin) {
    put(begin, "");
    const bool variable = begin == Token::Kind::variable_begin;
    std::string open;  // brackets that are not closed yet
    while (true) {
      move_to(behind_space(at_));
      if (at_ >= source_.size()) return;
      const size_t behind =
          open.empty() ? end_of_tag(variable ? "}}" : "%}", at_, !variable, !variable) : 0;
      if (behind != 0) {
        put(variable ? Token::Kind::variable_end : Token::Kind::block_end, "");
        finish_tag(behind);
        return;
      }
      lex_token(open);
    }
  }

  void lex_token(std::string& open) {
    const char c = source_[at_];
    if (c == '\'' || c == '"') return lex_string(c);
    if (is_decimal_digit(c)) return lex_number();
    size_t behind = at_;
    const char32_t letter = next_character(source_, behind);
    if (letter == '_' || is_letter(letter)) return lex_name();
    lex_sign(open);
  }

  void lex_name() {
    size_t end = at_;
    while (end < source_.size()) {
      size_t behind = end;
      if (!is_word(next_character(source_, behind))) break;
      end = behind;
    }
    put(Token::Kind::name, source_.substr(at_, end - at_));
    move_to(end);
  }

  // Returns the index after a run of digits of the base, with single underscores between them, or
  // `at` if there is none.
  size_t digits_from(size_t at, int base = 10) const {
    const auto digit = [&](size_t i) {
      const int value = i < source_.size() ? hex_value(source_[i]) : -1;
      return value >= 0 && value < base;
    };
    while (digit(at) ||
           (starts("_", at) && digit(at + 1) && at > 0 && hex_value(source_[at - 1]) >= 0))
      ++at;
    return at;
  }

  // Returns the index after a number such as 0x1f, 0o17 or 0b11, or `at_` if there is none.
  size_t prefixed_end() const {
    const char letter = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : 0;
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (source_[at_] != '0' || base == 0) return at_;
    const size_t first = at_ + 2 + (starts("_", at_ + 2) ? 1 : 0), end = digits_from(first, base);
    return end > first ? end : at_;
  }

  void lex_number() {
    const bool behind_dot = !tokens_.empty() && tokens_.back().kind == Token::Kind::sign &&
                            tokens_.back().text == "." && source_[at_ - 1] == '.';
    size_t end = prefixed_end();
    const bool prefixed = end > at_;
    if (!prefixed) end = digits_from(at_);
    bool real = false;
    const auto follows = [&](size_t at) { return digits_from(at) > at && source_[at] != '_'; };
    if (!behind_dot && !prefixed && starts(".", end) && follows(end + 1)) {
      real = true;
      end = digits_from(end + 1);
    }
    if (!behind_dot && !prefixed && (starts("e", end) || starts("E", end))) {
      const size_t exponent = end + (starts("+", end + 1) || starts("-", end + 1) ? 2 : 1);
      real = real || follows(exponent);
      if (follows(exponent)) end = digits_from(exponent);
    }
    std::string number = source_.substr(at_, end - at_);
    std::erase(number, '_');
    put(real ? Token::Kind::real : Token::Kind::integer, std::move(number));
    move_to(end);
  }

  void lex_string(char quote) {
    std::string value;
    size_t at = at_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] != '\\') {
        value += source_[at++];
      } else {
        ++at;
        unescape(value, at);
      }
    }
    if (at >= source_.size())
      refuse(
          fmt::format("the string that begins with {} is not "
                      "terminated",
                      quote));
    put(Token::Kind::string, std::move(value));
    move_to(at + 1);
  }

  // at: the byte after the backslash.
  void unescape(std::string& value, size_t& at) const {
    static constexpr std::string_view kNames = "abfnrtv\\'\"", kLetters = "\a\b\f\n\r\t\v\\'\"";
    if (at >= source_.size()) return;
    const char c = source_[at++];
    const size_t known = kNames.find(c);
    if (c == '\n') return;
    if (known != std::string_view::npos) {
      value += kLetters[known];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      append_code_point(value, escaped_number(at, c == 'x' ? 2 : c == 'u' ? 4 : 8));
    } else if (c == 'N') {
      append_code_point(value, named_letter(at));
    } else if (is_octal_digit(c)) {
      uint32_t number = static_cast<uint32_t>(c - '0');
      for (int i = 0; i < 2 && at < source_.size() && is_octal_digit(source_[at]); ++i, ++at)
        number = number * 8 + static_cast<uint32_t>(source_[at] - '0');
      append_code_point(value, number);
    } else {
      value += '\\';
      value += c;
    }
  }

  // at: the byte after \N.
  uint32_t named_letter(size_t& at) const {
    const size_t end = source_.find('}', at);
    if (!starts("{", at) || end == std::string::npos)
      refuse("the escape \\N needs a name in braces: \\N{DASH}");
    const std::string name = source_.substr(at + 1, end - at - 1);
    at = end + 1;
    const std::optional<char32_t> letter = code_point_named(name);
    if (!letter) refuse(fmt::format("the escape \\N{{{}}} does not name a character", name));
    return static_cast<uint32_t>(*letter);
  }

  uint32_t escaped_number(size_t& at, int digits) const {
    uint32_t number = 0;
    for (int read = 0; read < digits; ++read, ++at) {
      const int digit = at < source_.size() ? hex_value(source_[at]) : -1;
      if (digit < 0) refuse("an escape \\x, \\u or \\U has too few digits");
      number = number * 16 + static_cast<uint32_t>(digit);
    }
    return number;
  }

  void append_code_point(std::string& value, uint32_t code) const {
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      refuse(fmt::format("the escape of {:x} is not a character", code));
    append_character(code, value);
  }

  void lex_sign(std::string& open) {
    static constexpr std::string_view kPairs[] = {"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view pair : kPairs) {
      if (!starts(pair, at_)) continue;
      put(Token::Kind::sign, std::string(pair));
      move_to(at_ + 2);
      return;
    }
    const char c = source_[at_];
    if (std::string_view("+-*/%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      size_t behind = at_;
      next_character(source_, behind);
      refuse(fmt::format("unexpected character '{}'", source_.substr(at_, behind - at_)));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) refuse(fmt::format("unexpected '{}'", c));
      if (open.back() != c) refuse(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    put(Token::Kind::sign, std::string(1, c));
    move_to(at_ + 1);
  }

  std::string source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  if (!is_utf8(source)) throw TemplateError(name, 1, "the template is not valid UTF-8");
  return Lexer(with_plain_newlines(source), name).run();
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::text: return "template data";
    case Token::Kind::variable_begin: return "begin of print statement";
    case Token::Kind::variable_end: return "end of print statement";
    case Token::Kind::block_begin: return "begin of statement block";
    case Token::Kind::block_end: return "end of statement block";
    case Token::Kind::end: return "end of template";
    default: return token.text;
  }
}

}  // namespace megatron::jinja
