#include "jinja/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "jinja/conversions.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

constexpr int64_t kWidest = 1 << 20;

struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =, 0: the type's own
  char sign = '-';
  bool alternate = false, comma = false;
  int64_t width = 0;
  std::optional<int64_t> precision;
  char type = 0;
};

std::string padded(std::string sign, const std::string& body, const Spec& spec, char usual,
                   Budget& budget) {
  const char align = spec.align != 0 ? spec.align : usual;
  const int64_t length = count_code_points(sign) + count_code_points(body);
  const int64_t space = std::max<int64_t>(0, spec.width - length);
  budget.spend_bytes(body.size() + static_cast<size_t>(space));
  const auto fill = [&](int64_t times) {
    std::string out;
    for (int64_t i = 0; i < times; ++i) out += spec.fill;
    return out;
  };
  if (align == '=') return sign + fill(space) + body;
  const int64_t before = align == '>' ? space : align == '^' ? space / 2 : 0;
  return fill(before) + sign + body + fill(space - before);
}

std::string with_commas(std::string digits) {
  const size_t end = std::min(digits.find_first_of(".e"), digits.size());
  for (auto at = static_cast<int64_t>(end) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string whole_digits(uint64_t magnitude, char type, bool alternate) {
  switch (type) {
    case 'x': return (alternate ? "0x" : "") + fmt::format("{:x}", magnitude);
    case 'X': return (alternate ? "0X" : "") + fmt::format("{:X}", magnitude);
    case 'o': return (alternate ? "0o" : "") + fmt::format("{:o}", magnitude);
    case 'b': return (alternate ? "0b" : "") + fmt::format("{:b}", magnitude);
    default: return fmt::format("{}", magnitude);
  }
}

std::string real_digits(double value, const Spec& spec) {
  const char type = spec.type == 0 ? 'r' : spec.type;
  if (std::isnan(value) || std::isinf(value)) return std::isnan(value) ? "nan" : "inf";
  const auto precision = static_cast<int>(std::min<int64_t>(spec.precision.value_or(6), 1000));
  switch (type) {
    case 'f':
    case 'F': return fmt::format("{:.{}f}", value, precision);
    case 'e': return fmt::format("{:.{}e}", value, precision);
    case 'E': return fmt::format("{:.{}E}", value, precision);
    case '%': return fmt::format("{:.{}f}%", value * 100, precision);
    case 'g':
    case 'G': return fmt::format("{:.{}g}", value, std::max(precision, 1));
    default: break;
  }
  if (!spec.precision) return repr_of_real(value);
  std::string text = fmt::format("{:.{}g}", value, std::max(precision, 1));
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string sign_text(bool negative, char sign) {
  return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

std::string format_number(const Value& value, const Spec& spec, Budget& budget) {
  const bool whole_type = std::string_view("dxXobc").find(spec.type) != std::string_view::npos;
  bool negative = false;
  std::string digits;
  if (value.is_whole() && (spec.type == 0 || whole_type)) {
    const int64_t number = value.as_whole();
    negative = number < 0;
    const uint64_t magnitude =
        negative ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    digits = whole_digits(magnitude, spec.type, spec.alternate);
    if (spec.precision && static_cast<int64_t>(digits.size()) < *spec.precision) {
      MG_CHECK(*spec.precision <= kWidest, "precision {} is too large", *spec.precision);
      digits.insert(0, static_cast<size_t>(*spec.precision) - digits.size(), '0');
    }
  } else {
    MG_CHECK(!whole_type || spec.type == 0, "Unknown format code '{}' for object of type '{}'",
             spec.type, value.type_name());
    negative = std::signbit(value.as_number());
    digits = real_digits(std::fabs(value.as_number()), spec);
  }
  if (spec.comma) digits = with_commas(digits);
  return padded(sign_text(negative, spec.sign), digits, spec, '>', budget);
}

std::string format_text(std::string_view text, const Spec& spec, Budget& budget) {
  if (spec.precision) text = substring(text, 0, *spec.precision);
  return padded("", std::string(text), spec, '<', budget);
}

int64_t read_number(std::string_view text, size_t& at) {
  int64_t number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    number = number * 10 + (text[at] - '0');
    MG_CHECK(number <= kWidest, "a width or precision above {} in a format", kWidest);
  }
  return number;
}

// ---- text % values

class Percent {
 public:
  Percent(const Value& values, Budget& budget) : values_(values), budget_(budget) {}

  std::string run(std::string_view format) {
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const size_t mark = std::min(format.find('%', at), format.size());
      out += format.substr(at, mark - at);
      at = mark;
      if (at < format.size()) out += place(format, ++at);
      budget_.check_length(out.size());
    }
    MG_CHECK(named_ || used_ == count() || values_.is_dict(),
             "not all arguments converted during string formatting");
    budget_.spend_bytes(out.size());
    return out;
  }

 private:
  size_t count() const {
    return values_.is_form(Sequence::Form::tuple) ? values_.as_sequence().elements.size() : 1;
  }

  const Value& next() {
    MG_CHECK(used_ < count(), "not enough arguments for format string");
    const size_t index = used_++;
    return values_.is_form(Sequence::Form::tuple) ? values_.as_sequence().elements[index] : values_;
  }

  Value named(std::string_view format, size_t& at) {
    const size_t close = format.find(')', at);
    MG_CHECK(close != std::string_view::npos, "incomplete format key");
    MG_CHECK(values_.is_dict(), "format requires a mapping");
    const std::string_view key = format.substr(at + 1, close - at - 1);
    const Value* found = values_.as_dict().find(key);
    MG_CHECK(found != nullptr, "'{}'", key);
    at = close + 1;
    named_ = true;
    return *found;
  }

  int64_t number(std::string_view format, size_t& at) {
    if (at >= format.size() || format[at] != '*') return read_number(format, at);
    ++at;
    const Value& value = next();
    MG_CHECK(value.is_whole() && std::abs(value.as_whole()) <= kWidest, "* wants int");
    return value.as_whole();
  }

  std::string place(std::string_view format, size_t& at) {
    Spec spec;
    std::optional<Value> value;
    if (at < format.size() && format[at] == '(') value = named(format, at);
    bool zero = false;
    for (; at < format.size(); ++at) {
      const char c = format[at];
      if (c == '-') spec.align = '<';
      else if (c == '+' || (c == ' ' && spec.sign != '+')) spec.sign = c;
      else if (c == '#') spec.alternate = true;
      else if (c == '0') zero = true;
      else if (c != ' ') break;
    }
    spec.width = number(format, at);
    if (spec.width < 0) spec.align = '<', spec.width = -spec.width;
    if (at < format.size() && format[at] == '.') spec.precision = number(format, ++at);
    while (at < format.size() && (format[at] == 'l' || format[at] == 'h' || format[at] == 'L'))
      ++at;
    MG_CHECK(at < format.size(), "incomplete format");
    const char type = format[at++];
    if (type == '%') return "%";
    if (zero && spec.align == 0) spec.fill = "0", spec.align = '=';
    if (spec.align == 0) spec.align = '>';
    return convert(value ? *value : next(), type, spec);
  }

  std::string convert(const Value& value, char type, Spec& spec) {
    if (type == 's' || type == 'r' || type == 'a') {
      if (spec.align == '=') spec.fill = " ", spec.align = '>';
      return format_text(type == 's' ? to_text(value, budget_) : repr(value, budget_), spec,
                         budget_);
    }
    if (type == 'c') {
      std::string letter;
      if (value.is_whole() && value.as_whole() >= 0 && value.as_whole() < 0xD800)
        append_utf8(letter, static_cast<char32_t>(value.as_whole()));
      if (value.is_text() && value.as_text().length == 1) letter = value.bytes();
      MG_CHECK(!letter.empty(), "%c requires int or char");
      return format_text(letter, spec, budget_);
    }
    MG_CHECK(std::string_view("diuxXofFeEgG").find(type) != std::string_view::npos,
             "unsupported format character '{}'", type);
    MG_CHECK(value.is_number(), "%{} format: a real number is required, not {}", type,
             value.type_name());
    const bool decimal = type == 'd' || type == 'i' || type == 'u';
    spec.type = decimal ? 'd' : type;
    if (!decimal || value.is_whole()) return format_number(value, spec, budget_);
    MG_CHECK(std::fabs(value.as_number()) < 9.2e18, "%d format: a number beyond 64 bits");
    return format_number(Value::integer(static_cast<int64_t>(value.as_number())), spec, budget_);
  }

  const Value& values_;
  Budget& budget_;
  size_t used_ = 0;
  bool named_ = false;
};

// ---- text.format(...)

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  size_t behind = 0;
  if (!text.empty()) next_code_point(text, behind);
  if (behind > 0 && behind < text.size() && is_align(text[behind])) {
    spec.fill = text.substr(0, behind);
    spec.align = text[behind];
    at = behind + 1;
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[at++];
  }
  const auto skip = [&](char c) {
    return at < text.size() && text[at] == c ? (++at, true) : false;
  };
  if (at < text.size() && std::string_view("+- ").find(text[at]) != std::string_view::npos)
    spec.sign = text[at++];
  spec.alternate = skip('#');
  if (skip('0') && spec.align == 0) spec.fill = "0", spec.align = '=';
  spec.width = read_number(text, at);
  spec.comma = skip(',');
  if (skip('.')) spec.precision = read_number(text, at);
  if (at < text.size()) spec.type = text[at++];
  MG_CHECK(at == text.size(), "Invalid format specifier '{}'", text);
  return spec;
}

class Braces {
 public:
  explicit Braces(Call& call) : call_(call) {}

  std::string run(std::string_view format, int depth) {
    MG_CHECK(depth < 3, "Max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const size_t mark = std::min(format.find_first_of("{}", at), format.size());
      out += format.substr(at, mark - at);
      at = mark;
      if (at >= format.size()) break;
      if (at + 1 < format.size() && format[at + 1] == format[at]) {
        out += format[at];
        at += 2;
        continue;
      }
      MG_CHECK(format[at] == '{', "Single '}}' encountered in format string");
      out += field(format, at, depth);
      call_.budget.check_length(out.size());
    }
    call_.budget.spend_bytes(out.size());
    return out;
  }

 private:
  std::string field(std::string_view format, size_t& at, int depth) {
    size_t open = 1, end = at + 1;
    for (; end < format.size() && open > 0; ++end)
      open += format[end] == '{' ? 1 : format[end] == '}' ? -1 : 0;
    MG_CHECK(open == 0, "expected '}}' before end of string");
    std::string_view inner = format.substr(at + 1, end - at - 2);
    at = end;
    const size_t name_end = std::min(inner.find_first_of("!:"), inner.size());
    Value value = lookup(inner.substr(0, name_end));
    inner.remove_prefix(name_end);
    Budget& budget = call_.budget;
    if (inner.size() >= 2 && inner[0] == '!') {
      MG_CHECK(inner[1] == 'r' || inner[1] == 's' || inner[1] == 'a',
               "Unknown conversion specifier");
      value = Value::text(inner[1] == 's' ? to_text(value, budget) : repr(value, budget));
      inner.remove_prefix(2);
    }
    if (!inner.empty()) inner.remove_prefix(1);
    const std::string text = run(inner, depth + 1);
    const Spec spec = parse_spec(text);
    if (value.is_number() && !(value.is_boolean() && text.empty()))
      return format_number(value, spec, budget);
    MG_CHECK(value.is_text() || text.empty(), "unsupported format string passed to {}.__format__",
             value.type_name());
    MG_CHECK(spec.type == 0 || spec.type == 's',
             "Unknown format code '{}' for object of type 'str'", spec.type);
    return format_text(to_text(value, budget), spec, budget);
  }

  const Value& argument(std::string_view name) {
    const bool digits = name.find_first_not_of("0123456789") == std::string_view::npos;
    if (!digits) {
      for (const auto& [key, value] : call_.keyword)
        if (key == name) return value;
      fail("'{}'", name);
    }
    MG_CHECK(name.empty() ? automatic_ >= 0 : automatic_ <= 0,
             "cannot switch between automatic and manual field numbering");
    size_t at = 0;
    const auto index = static_cast<size_t>(name.empty() ? automatic_++ : read_number(name, at));
    if (!name.empty()) automatic_ = -1;
    MG_CHECK(index + 1 < call_.positional.size(), "Replacement index {} out of range", index);
    return call_.positional[index + 1];
  }

  Value lookup(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = argument(path.substr(0, end));
    path.remove_prefix(end);
    while (!path.empty()) {
      const bool bracket = path[0] == '[';
      const size_t stop =
          bracket ? path.find(']') : std::min(path.find_first_of(".[", 1), path.size());
      MG_CHECK(stop != std::string_view::npos, "Missing ']' in format string");
      const std::string_view name = path.substr(1, stop - 1);
      size_t at = 0;
      const bool digits =
          !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
      value = !bracket ? attribute_of(value, name)
              : digits ? element_of(value, Value::integer(read_number(name, at)), call_.budget)
                       : element_of(value, Value::text(std::string(name)), call_.budget);
      path.remove_prefix(stop + (bracket ? 1 : 0));
    }
    return value;
  }

  Call& call_;
  int64_t automatic_ = 0;  // next number of {}, -1 after {0}
};

}  // namespace

Value format_percent(const Value& text, const Value& values, Budget& budget) {
  return Value::text(Percent(values, budget).run(text.bytes()), text.as_text().markup);
}

Value format_braces(Call& call) {
  return Value::text(Braces(call).run(call.positional[0].bytes(), 0));
}

}  // namespace megatron::jinja
