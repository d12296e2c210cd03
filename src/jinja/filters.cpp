// Filters of single values, and the table of all.
#include "jinja/filters.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/conversions.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

Value default_value(Call& call) {
  const Parameters p(call, "default", {"value", "default_value", "boolean"}, 1);
  const bool replace = p[0]->is_undefined() || (p.flag(2, false) && !p[0]->truth());
  if (!replace) return *p[0];
  return p.given(1) ? *p[1] : Value::text("");
}

// Digits with single underscores between them, without those; nothing else in the text.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && std::isalnum(text[i - 1]) != 0 &&
                         std::isalnum(text[i + 1]) != 0;
    if (text[i] == '_' && !between) return std::nullopt;
    if (text[i] != '_') digits += text[i];
  }
  return digits;
}

std::optional<Value> read_whole(std::string_view text, int64_t base) {
  const auto digits = without_underscores(strip_space(text, true, true));
  if (!digits || digits->empty()) return std::nullopt;
  std::string_view rest = *digits;
  const bool minus = rest[0] == '-';
  if (minus || rest[0] == '+') rest.remove_prefix(1);
  const char letter = rest.size() > 1 && rest[0] == '0' ? static_cast<char>(rest[1] | 0x20) : ' ';
  const int64_t named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (named != 0 && (base == named || base == 0)) {
    rest.remove_prefix(2);
    base = named;
  }
  if (base == 0) base = 10;
  MG_CHECK(base >= 2 && base <= 36, "int() base must be >= 2 and <= 36, or 0");
  if (rest.empty() || rest[0] == '-' || rest[0] == '+') return std::nullopt;
  const std::string signed_digits = (minus ? "-" : "") + std::string(rest);
  int64_t number = 0;
  const char* end = signed_digits.data() + signed_digits.size();
  const auto result = std::from_chars(signed_digits.data(), end, number, static_cast<int>(base));
  MG_CHECK(result.ec != std::errc::result_out_of_range, "the integer {} has more than 64 bits",
           signed_digits.substr(0, 40));
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return Value::integer(number);
}

std::optional<double> read_real(std::string_view text) {
  const auto digits = without_underscores(strip_space(text, true, true));
  if (!digits || digits->empty() || digits->find_first_of("xX(pP") != std::string::npos)
    return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(digits->c_str(), &end);
  if (end != digits->c_str() + digits->size()) return std::nullopt;
  return number;
}

std::optional<Value> truncated(double number) {
  if (std::isnan(number) || std::isinf(number)) return std::nullopt;
  MG_CHECK(std::fabs(number) < 9.2e18, "the integer {} has more than 64 bits", number);
  return Value::integer(static_cast<int64_t>(number));
}

Value to_int(Call& call) {
  const Parameters p(call, "int", {"value", "default", "base"}, 1);
  check_defined(*p[0]);
  const Value initial = p.given(1) ? *p[1] : Value::integer(0);
  if (p[0]->is_whole()) return Value::integer(p[0]->as_whole());
  if (p[0]->is_real()) return truncated(p[0]->as_number()).value_or(initial);
  if (!p[0]->is_text()) return initial;
  if (const auto whole = read_whole(p[0]->bytes(), p.whole(2, 10))) return *whole;
  const auto real = read_real(p[0]->bytes());
  return real ? truncated(*real).value_or(initial) : initial;
}

Value to_float(Call& call) {
  const Parameters p(call, "float", {"value", "default"}, 1);
  check_defined(*p[0]);
  if (p[0]->is_number()) return Value::real(p[0]->as_number());
  const auto real = p[0]->is_text() ? read_real(p[0]->bytes()) : std::nullopt;
  if (real) return Value::real(*real);
  return p.given(1) ? *p[1] : Value::real(0);
}

Value absolute(Call& call) {
  const Parameters p(call, "abs", {"x"}, 1);
  check_defined(*p[0]);
  MG_CHECK(p[0]->is_number(), "bad operand type for abs(): '{}'", p[0]->type_name());
  if (p[0]->is_real()) return Value::real(std::fabs(p[0]->as_number()));
  return p[0]->as_whole() < 0 ? negative(*p[0]) : positive(*p[0]);
}

// To nearest at a decimal place, the exact half to even.
double round_at(double number, int64_t places) {
  if (std::isnan(number) || std::isinf(number) || places > 330) return number;
  if (places < 0) {
    const double unit = std::pow(10.0, static_cast<double>(std::min<int64_t>(-places, 400)));
    return std::isinf(unit) ? 0 : std::nearbyint(number / unit) * unit;
  }
  char buffer[800];
  std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(places), number);
  return std::strtod(buffer, nullptr);
}

Value round_number(Call& call) {
  const Parameters p(call, "round", {"value", "precision", "method"}, 1);
  check_defined(*p[0]);
  const std::string method = p.text(2, "common");
  const int64_t places = p.whole(1, 0);
  MG_CHECK(method == "common" || method == "ceil" || method == "floor",
           "method must be common, ceil or floor");
  MG_CHECK(p[0]->is_number(), "type {} doesn't define __round__ method", p[0]->type_name());
  const double number = p[0]->as_number();
  if (method != "common") {
    const double unit = std::pow(10.0, static_cast<double>(places));
    const double scaled = number * unit;
    return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
  }
  if (!p[0]->is_whole()) return Value::real(round_at(number, places));
  if (places >= 0) return Value::integer(p[0]->as_whole());
  return truncated(round_at(number, places)).value_or(*p[0]);
}

Value to_string(Call& call) {
  const Parameters p(call, "string", {"object"}, 1);
  return p[0]->is_text() ? *p[0] : Value::text(to_text(*p[0], call.budget));
}

Value json(Call& call) {
  const Parameters p(call, "tojson", {"x", "ensure_ascii", "indent", "separators", "sort_keys"}, 1);
  JsonStyle style;
  style.ensure_ascii = p.flag(1, false);
  style.sort_keys = p.flag(4, false);
  if (p.given_and_not_none(2)) {
    const int64_t width = p[2]->is_whole() ? p[2]->as_whole() : 0;
    MG_CHECK(width <= 1000, "tojson: an indent of {} is too wide", width);
    style.indent = p[2]->is_text()
                       ? p.text(2)
                       : std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    MG_CHECK(p[2]->is_text() || p[2]->is_whole(), "tojson: indent must be an integer or a text");
  }
  style.between_items = style.indent ? "," : ", ";
  if (p.given_and_not_none(3)) {
    const Values both = elements_of(*p[3], call.budget);
    MG_CHECK(both.size() == 2 && both[0].is_text() && both[1].is_text(),
             "tojson: separators must be two texts");
    style.between_items = both[0].bytes();
    style.behind_key = both[1].bytes();
  }
  return Value::text(to_json(*p[0], style, call.budget));
}

Value attribute(Call& call) {
  const Parameters p(call, "attr", {"obj", "name"}, 2);
  const std::string name = to_text(*p[1], call.budget);
  if (p[0]->is_dict() && name != "items" && name != "keys" && name != "values" && name != "get")
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  return attribute_of(*p[0], name);
}

constexpr std::array kFilters = {
    NamedNative{"default", default_value},
    NamedNative{"d", default_value},
    NamedNative{"int", to_int},
    NamedNative{"float", to_float},
    NamedNative{"abs", absolute},
    NamedNative{"round", round_number},
    NamedNative{"string", to_string},
    NamedNative{"tojson", json},
    NamedNative{"attr", attribute},
};

}  // namespace

std::span<const NamedNative> scalar_filters() { return kFilters; }

Native find_filter(std::string_view name) {
  const auto find_in = [name](std::span<const NamedNative> filters) -> Native {
    for (const NamedNative& filter : filters)
      if (filter.name == name) return filter.native;
    return nullptr;
  };
  if (const Native native = find_in(text_filters())) return native;
  if (const Native native = find_in(sequence_filters())) return native;
  if (const Native native = find_in(selecting_filters())) return native;
  return find_in(scalar_filters());
}

}  // namespace megatron::jinja
