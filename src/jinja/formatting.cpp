#include "jinja/formatting.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "jinja/conversions.h"
#include "jinja/number_format.h"
#include "jinja/numbers.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads a number at text[at] and moves `at` past it.
std::optional<int64_t> read_number(std::string_view text, size_t& at) {
  std::optional<int64_t> number;
  for (; at < text.size() && is_digit(text[at]); ++at) {
    number = number.value_or(0) * 10 + (text[at] - '0');
    MG_CHECK(*number < int64_t{1} << 40, "Too many decimal digits in format string");
  }
  return number;
}

std::string first_code_points(const std::string& text, const std::optional<int64_t>& count) {
  return count ? std::string(substring(text, 0, *count)) : text;
}

std::string character(const Value& code, const char* range_error) {
  const int64_t number = code.is_big() ? -1 : code.as_whole();
  MG_CHECK(number >= 0 && number < 0x110000, "{}", range_error);
  MG_CHECK(number < 0xD800 || number >= 0xE000, "the code point {} is not a character", number);
  std::string text;
  append_character(static_cast<char32_t>(number), text);
  return text;
}

std::string converted(const Value& value, char how, Budget& budget) {
  if (how == 's') return to_text(value, budget);
  return how == 'r' ? repr(value, budget) : ascii(repr(value, budget));
}

// ---- format % values

class PercentFormat {
 public:
  PercentFormat(std::string_view format, const Value& values, Budget& budget)
      : format_(format), values_(values), budget_(budget) {}

  std::string run() {
    while (at_ < format_.size()) {
      if (format_[at_] != '%') {
        const size_t end = std::min(format_.find('%', at_), format_.size());
        put(format_.substr(at_, end - at_));
        at_ = end;
      } else {
        ++at_;
        convert();
      }
    }
    const bool many = values_.is_tuple();
    const bool may_be_left =
        values_.is_dict() || (values_.is_sequence() && !many) || values_.is_undefined();
    MG_CHECK(may_be_left || next_ >= (many ? values_.as_sequence().elements.size() : 1),
             "not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  void put(std::string_view text) {
    out_ += text;
    budget_.spend_bytes(text.size());
    budget_.check_length(out_.size());
  }

  char take() {
    MG_CHECK(at_ < format_.size(), "incomplete format");
    return format_[at_++];
  }

  Value argument() {
    if (key_) {
      const Value* found = values_.as_dict().find(*key_);
      budget_.spend_items(values_.as_dict().members.size());
      MG_CHECK(found != nullptr, "{}", repr_of_text(*key_));
      return *found;
    }
    const bool many = values_.is_tuple();
    MG_CHECK(next_ < (many ? values_.as_sequence().elements.size() : 1),
             "not enough arguments for format string");
    return many ? values_.as_sequence().elements[next_++] : (++next_, values_);
  }

  void read_key() {
    MG_CHECK(values_.is_dict(), "format requires a mapping");
    const size_t begin = ++at_;
    for (int open = 1; open > 0; ++at_) {
      MG_CHECK(at_ < format_.size(), "incomplete format key");
      open += format_[at_] == '(' ? 1 : format_[at_] == ')' ? -1 : 0;
    }
    key_ = std::string(format_.substr(begin, at_ - 1 - begin));
  }

  // A width or a precision: digits, or * for the next argument.
  std::optional<int64_t> read_size() {
    if (at_ >= format_.size() || format_[at_] != '*') return read_number(format_, at_);
    ++at_;
    const Value size = argument();
    MG_CHECK(size.is_whole(), "* wants int");
    return size.as_whole();
  }

  void convert() {
    key_.reset();
    if (at_ < format_.size() && format_[at_] == '%') return put(format_.substr(at_++, 1));
    if (at_ < format_.size() && format_[at_] == '(') read_key();
    bool left = false, zero = false;
    NumberStyle style;
    for (; at_ < format_.size(); ++at_) {
      const char flag = format_[at_];
      if (flag == '-') left = true;
      else if (flag == '0') zero = true;
      else if (flag == '#') style.alternate = true;
      else if (flag == '+') style.sign = '+';
      else if (flag == ' ') style.sign = style.sign == '+' ? '+' : ' ';
      else break;
    }
    int64_t width = read_size().value_or(0);
    left = left || width < 0;
    width = std::abs(width);
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      style.precision = std::max<int64_t>(read_size().value_or(0), 0);
    }
    if (at_ < format_.size() && std::string_view("hlL").find(format_[at_]) != format_.npos) ++at_;
    style.type = take();
    write(style, width, left, zero);
  }

  void write(NumberStyle style, int64_t width, bool left, bool zero) {
    const std::string_view types = "diouxXeEfFgG";
    Digits digits;
    const bool number = types.find(style.type) != types.npos;
    if (number) {
      digits = digits_of(style);
    } else {
      digits.rest = text_of(style);
    }
    const auto length = static_cast<int64_t>(digits.prefix.size() + digits.whole.size()) +
                        count_characters(digits.rest);
    budget_.check_length(static_cast<size_t>(width));
    const auto missing = static_cast<size_t>(std::max<int64_t>(width - length, 0));
    if (!left && !(zero && number)) put(std::string(missing, ' '));
    put(digits.prefix);
    if (!left && zero && number) put(std::string(missing, '0'));
    put(digits.whole);
    put(digits.rest);
    if (left) put(std::string(missing, ' '));
  }

  Digits digits_of(NumberStyle& style) {
    const char type = style.type;
    const Value value = argument();
    check_defined(value);
    if (std::string_view("eEfFgG").find(type) != std::string_view::npos) {
      MG_CHECK(value.is_number(), "must be real number, not {}", value.type_name());
      return real_digits(value.as_number(), style, budget_);
    }
    if (type == 'i' || type == 'u') style.type = 'd';
    const bool decimal = style.type == 'd';
    MG_CHECK(value.is_number() && (decimal || value.is_whole()),
             "%{} format: {} is required, not {}", type, decimal ? "a real number" : "an integer",
             value.type_name());
    if (value.is_whole()) return integer_digits(value, style, budget_);
    const std::optional<Value> whole = truncated(value.as_number());
    MG_CHECK(whole.has_value(), "cannot convert float {} to integer",
             repr_of_real(value.as_number()).find("nan") == std::string::npos ? "infinity" : "NaN");
    return integer_digits(*whole, style, budget_);
  }

  std::string text_of(const NumberStyle& style) {
    const char type = style.type;
    if (type == 's' || type == 'r' || type == 'a')
      return first_code_points(converted(argument(), type, budget_), style.precision);
    size_t at = at_ - 1;
    const size_t index = at;
    const char32_t letter = next_character(format_, at);
    MG_CHECK(type == 'c', "unsupported format character '{}' (0x{:x}) at index {}",
             format_.substr(index, at - index), static_cast<uint32_t>(letter),
             count_characters(format_.substr(0, index)));
    const Value value = argument();
    if (value.is_text() && value.as_text().length == 1) return value.bytes();
    MG_CHECK(value.is_whole(), "%c requires int or char");
    return character(value, "%c arg not in range(0x110000)");
  }

  std::string_view format_;
  const Value& values_;
  Budget& budget_;
  size_t at_ = 0, next_ = 0;
  std::optional<std::string> key_;
  std::string out_;
};

// ---- format(value, spec)

struct Spec {
  std::string fill = " ";
  char align = '\0';
  char sign = '\0';
  bool no_negative_zero = false, alternate = false;
  std::optional<int64_t> width, precision;
  char grouping = '\0';
  char type = '\0';
};

bool is_align(std::string_view spec, size_t at) {
  return at < spec.size() && std::string_view("<>=^").find(spec[at]) != std::string_view::npos;
}

Spec read_spec(std::string_view spec, const Value& value) {
  Spec s;
  size_t at = 0;
  size_t behind = 0;
  if (!spec.empty()) next_character(spec, behind);
  const bool filled = behind > 0 && is_align(spec, behind);
  if (filled) {
    s.fill = std::string(spec.substr(0, behind));
    at = behind;
  }
  if (is_align(spec, at)) s.align = spec[at++];
  const auto skip = [&](char c) { return at < spec.size() && spec[at] == c && (++at, true); };
  for (const char sign : {'+', '-', ' '})
    if (s.sign == '\0' && skip(sign)) s.sign = sign;
  s.no_negative_zero = skip('z');
  s.alternate = skip('#');
  if (!filled && skip('0')) {
    s.fill = "0";
    if (s.align == '\0' && !value.is_text()) s.align = '=';
  }
  s.width = read_number(spec, at);
  if (skip(',')) s.grouping = ',';
  if (skip('_')) {
    MG_CHECK(s.grouping == '\0', "Cannot specify both ',' and '_'.");
    s.grouping = '_';
  }
  MG_CHECK(!(s.grouping == '_' && skip(',')), "Cannot specify both ',' and '_'.");
  if (skip('.')) {
    s.precision = read_number(spec, at);
    MG_CHECK(s.precision.has_value(), "Format specifier missing precision");
  }
  MG_CHECK(spec.size() - at <= 1, "Invalid format specifier '{}' for object of type '{}'", spec,
           value.type_name());
  if (at < spec.size()) s.type = spec[at];
  return s;
}

[[noreturn]] void unknown_type(const Spec& s, const Value& value) {
  fail("Unknown format code '{}' for object of type '{}'", s.type, value.type_name());
}

std::string formatted_text(const Value& value, const Spec& s, Budget& budget) {
  if (s.type != '\0' && s.type != 's') unknown_type(s, value);
  MG_CHECK(s.sign == '\0', "{} not allowed in string format specifier",
           s.sign == ' ' ? "Space" : "Sign");
  MG_CHECK(!s.no_negative_zero,
           "Negative zero coercion (z) not allowed in string format specifier");
  MG_CHECK(!s.alternate, "Alternate form (#) not allowed in string format specifier");
  MG_CHECK(s.grouping == '\0', "Cannot specify '{}' with 's'.", s.grouping);
  MG_CHECK(s.align != '=', "'=' alignment not allowed in string format specifier");
  const Align align = s.align == '>' ? Align::right : s.align == '^' ? Align::center : Align::left;
  return aligned(first_code_points(value.bytes(), s.precision), s.width.value_or(0), s.fill, align,
                 budget);
}

std::string formatted_number(Digits digits, const Spec& s, size_t group, Budget& budget) {
  const int64_t width = s.width.value_or(0);
  budget.check_length(static_cast<size_t>(width));
  const size_t around = digits.prefix.size() + digits.rest.size();
  const bool within = s.align == '=';
  const bool finite = !digits.whole.empty() && digits.whole != "inf" && digits.whole != "nan" &&
                      digits.whole != "INF" && digits.whole != "NAN";
  const bool zeros = within && s.fill == "0" && static_cast<size_t>(width) > around;
  if (finite && (s.grouping != '\0' || zeros))
    digits.whole =
        grouped(digits.whole, s.grouping, group, zeros ? static_cast<size_t>(width) - around : 0);
  const std::string number = digits.whole + digits.rest;
  if (within) {
    return digits.prefix + aligned(number, width - static_cast<int64_t>(digits.prefix.size()),
                                   s.fill, Align::right, budget);
  }
  const Align align = s.align == '<' ? Align::left : s.align == '^' ? Align::center : Align::right;
  return aligned(digits.prefix + number, width, s.fill, align, budget);
}

std::string formatted_real(double value, const Spec& s, Budget& budget) {
  MG_CHECK(!(s.type == 'n' && s.grouping != '\0'), "Cannot specify '{}' with 'n'.", s.grouping);
  const NumberStyle style{s.type, s.sign == '\0' ? '-' : s.sign, s.alternate, s.no_negative_zero,
                          s.precision};
  return formatted_number(real_digits(value, style, budget), s, 3, budget);
}

std::string formatted_integer(const Value& value, const Spec& s, Budget& budget) {
  if (s.type != '\0' && std::string_view("eEfFgG%").find(s.type) != std::string_view::npos)
    return formatted_real(value.as_number(), s, budget);
  if (s.type != '\0' && std::string_view("bcdoxXn").find(s.type) == std::string_view::npos)
    unknown_type(s, value);
  MG_CHECK(!s.precision, "Precision not allowed in integer format specifier");
  MG_CHECK(!s.no_negative_zero,
           "Negative zero coercion (z) not allowed in format specifier with integer format code "
           "'{}'",
           s.type == '\0' ? 'd' : s.type);
  if (s.type == 'c') {
    MG_CHECK(s.sign == '\0', "Sign not allowed with integer format specifier 'c'");
    MG_CHECK(!s.alternate, "Alternate form (#) not allowed with integer format specifier 'c'");
    Digits digits;
    digits.rest = character(value, "%c arg not in range(0x110000)");
    return formatted_number(std::move(digits), s, 3, budget);
  }
  const bool decimal = s.type == '\0' || s.type == 'd' || s.type == 'n';
  MG_CHECK(!(s.grouping == ',' && !decimal) && !(s.grouping != '\0' && s.type == 'n'),
           "Cannot specify '{}' with '{}'.", s.grouping, s.type);
  const NumberStyle style{decimal ? 'd' : s.type, s.sign == '\0' ? '-' : s.sign, s.alternate};
  return formatted_number(integer_digits(value, style, budget), s, decimal ? 3 : 4, budget);
}

// ---- str.format

class FieldFormat {
 public:
  FieldFormat(const FieldLookup& lookup, Budget& budget) : lookup_(lookup), budget_(budget) {}

  std::string run(std::string_view format, int depth) {
    MG_CHECK(depth >= 0, "Max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const char c = format[at++];
      if (c != '{' && c != '}') {
        out += c;
        continue;
      }
      if (at < format.size() && format[at] == c) {
        out += c;
        ++at;
        continue;
      }
      MG_CHECK(c == '{' && at < format.size(), "Single '{}' encountered in format string", c);
      out += field(inside(format, at), depth);
      budget_.check_length(out.size());
    }
    budget_.spend_bytes(out.size());
    return out;
  }

 private:
  // Returns the text up to the brace that ends the field, and moves `at` past that brace.
  static std::string_view inside(std::string_view format, size_t& at) {
    const size_t begin = at;
    for (int open = 1; at < format.size(); ++at) {
      open += format[at] == '{' ? 1 : format[at] == '}' ? -1 : 0;
      if (open == 0) return format.substr(begin, at++ - begin);
    }
    fail("expected '}}' before end of string");
  }

  std::string field(std::string_view text, int depth) {
    size_t end = 0;
    for (bool bracket = false; end < text.size(); ++end) {
      if (text[end] == '[') bracket = true;
      if (text[end] == ']') bracket = false;
      MG_CHECK(text[end] != '{', "unexpected '{{' in field name");
      if (!bracket && (text[end] == ':' || text[end] == '!')) break;
    }
    char how = '\0';
    std::string_view spec = text.substr(end);
    if (spec.starts_with('!')) {
      MG_CHECK(spec.size() > 1, "end of string while looking for conversion specifier");
      how = spec[1];
      spec.remove_prefix(2);
      MG_CHECK(spec.empty() || spec[0] == ':', "expected ':' after conversion specifier");
    }
    if (!spec.empty()) spec.remove_prefix(1);
    Value value = named(text.substr(0, end));
    if (how != '\0') {
      MG_CHECK(how == 's' || how == 'r' || how == 'a', "Unknown conversion specifier {}", how);
      value = Value::text(converted(value, how, budget_), &budget_);
    }
    return format_value(value, run(spec, depth - 1), budget_);
  }

  // "0.role[1]": a field, then attributes and elements.
  Value named(std::string_view name) {
    size_t at = std::min(name.find_first_of(".["), name.size());
    std::string first(name.substr(0, at));
    const bool number = !first.empty() && std::all_of(first.begin(), first.end(), is_digit);
    if (first.empty() || number) {
      MG_CHECK(numbered_ == 0 || (numbered_ > 0) == first.empty(),
               "cannot switch from manual field specification to automatic field numbering");
      if (first.empty()) first = std::to_string(next_++);
      numbered_ = number ? -1 : 1;
    }
    Value value = lookup_(first);
    while (at < name.size()) {
      if (name[at] == '.') {
        const size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        MG_CHECK(end > at + 1, "Empty attribute in format string");
        value = attribute_of(value, name.substr(at + 1, end - at - 1), budget_);
        at = end;
        continue;
      }
      MG_CHECK(name[at] == '[', "Only '.' or '[' may follow ']' in format field specifier");
      const size_t end = name.find(']', at);
      MG_CHECK(end != name.npos, "Missing ']' in format string");
      MG_CHECK(end > at + 1, "Empty attribute in format string");
      const std::string key(name.substr(at + 1, end - at - 1));
      const bool index = std::all_of(key.begin(), key.end(), is_digit) && key.size() < 18;
      value =
          element_of(value, index ? Value::integer(std::stoll(key)) : Value::text(key), budget_);
      at = end + 1;
    }
    return value;
  }

  const FieldLookup& lookup_;
  Budget& budget_;
  int64_t next_ = 0;
  int numbered_ = 0;  // 1: automatic "{}", -1: explicit "{0}"
};

}  // namespace

std::string percent_format(std::string_view format, const Value& values, Budget& budget) {
  return PercentFormat(format, values, budget).run();
}

std::string format_value(const Value& value, std::string_view spec, Budget& budget) {
  budget.spend(1);
  if (spec.empty()) return to_text(value, budget);
  MG_CHECK(value.is_text() || value.is_number(),
           "unsupported format string passed to {}.__format__", value.type_name());
  const Spec s = read_spec(spec, value);
  if (value.is_text()) return formatted_text(value, s, budget);
  if (value.is_whole()) return formatted_integer(value, s, budget);
  const bool known = s.type == '\0' || std::string_view("eEfFgGn%").find(s.type) != spec.npos;
  if (!known) unknown_type(s, value);
  return formatted_real(value.as_number(), s, budget);
}

std::string format_fields(std::string_view format, const FieldLookup& lookup, Budget& budget) {
  return FieldFormat(lookup, budget).run(format, 2);
}

std::string aligned(std::string_view text, int64_t width, std::string_view fill, Align align,
                    Budget& budget) {
  const auto missing = std::max<int64_t>(width - count_characters(text), 0);
  budget.check_length(static_cast<size_t>(std::min<int64_t>(missing, int64_t{1} << 40)) *
                      fill.size());
  const int64_t left = align == Align::left ? 0 : align == Align::right ? missing : missing / 2;
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  budget.spend_bytes(out.size());
  return out;
}

}  // namespace megatron::jinja
