#include "jinja/number_format.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "jinja/numbers.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

constexpr int64_t kMaxPrecision = 10000;

std::string sign_text(bool negative, char sign) {
  if (negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

// The digits "ddd" of a number and its exponent: d.dd x 10^exponent.
struct Scientific {
  std::string digits;
  int exponent;
};

Scientific scientific(double value, int64_t digits) {
  const std::string text = fmt::format("{:.{}e}", value, digits - 1);
  const size_t mark = text.find('e');
  std::string all = text.substr(0, mark);
  std::erase(all, '.');
  return {all, std::atoi(text.c_str() + mark + 1)};
}

std::string exponent_text(int exponent, char letter) {
  return fmt::format("{}{}{:02}", letter, exponent < 0 ? '-' : '+', std::abs(exponent));
}

// %g: `precision` significant digits, with an exponent from 10^most on or below 10^-4. Trailing
// zeros are removed, except in the alternate form.
std::string general(double value, int64_t precision, int64_t most, bool alternate, char letter) {
  auto [digits, exponent] = scientific(value, precision);
  const bool small = exponent < -4;
  if (!alternate)
    while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  if (small || exponent >= most) {
    std::string text = digits.substr(0, 1);
    if (digits.size() > 1 || alternate) text += "." + digits.substr(1);
    return text + exponent_text(exponent, letter);
  }
  if (exponent < 0) return "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  std::string text = digits.substr(0, whole);
  if (digits.size() > whole || alternate) text += "." + digits.substr(whole);
  return text;
}

// Writes the number as str() does, or with the given number of significant digits, always with a
// point or an exponent.
std::string plain(double value, const std::optional<int64_t>& precision, bool alternate) {
  if (!precision) {
    const std::string text = repr_of_real(value);
    return alternate && text.find('.') == std::string::npos
               ? text.substr(0, text.find('e')) + "." + text.substr(text.find('e'))
               : text;
  }
  const int64_t digits = std::max<int64_t>(*precision, 1);
  std::string text = general(value, digits, digits - 1, alternate, 'e');
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  if (text.ends_with('.')) text += '0';
  return text;
}

std::string positive_text(double value, const NumberStyle& style) {
  const int64_t precision = style.precision.value_or(6);
  const bool upper = style.type == 'E' || style.type == 'G';
  const char letter = upper ? 'E' : 'e';
  switch (style.type) {
    case 'e':
    case 'E': {
      const auto [digits, exponent] = scientific(value, precision + 1);
      const std::string point = precision > 0 || style.alternate ? "." : "";
      return digits.substr(0, 1) + point + digits.substr(1) + exponent_text(exponent, letter);
    }
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", value, precision) +
             (precision == 0 && style.alternate ? "." : "");
    case '%': return fmt::format("{:.{}f}", value * 100, precision) + "%";
    case 'g':
    case 'G':
    case 'n': {
      const int64_t digits = std::max<int64_t>(precision, 1);
      return general(value, digits, digits, style.alternate, letter);
    }
    default: return plain(value, style.precision, style.alternate);
  }
}

}  // namespace

Digits integer_digits(const Value& whole, const NumberStyle& style, Budget& budget) {
  const char type = style.type;
  const int base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10;
  Digits digits;
  digits.whole = text_of_integer(whole, budget, base);
  const bool negative = digits.whole[0] == '-';
  if (negative) digits.whole.erase(0, 1);
  if (type == 'X') digits.whole = to_upper(digits.whole);
  digits.prefix = sign_text(negative, style.sign);
  if (style.alternate && base != 10) digits.prefix += std::string("0") + type;
  const auto least = static_cast<size_t>(style.precision.value_or(0));
  budget.check_length(least);
  if (digits.whole.size() < least) digits.whole.insert(0, least - digits.whole.size(), '0');
  return digits;
}

Digits real_digits(double value, const NumberStyle& style, Budget& budget) {
  MG_CHECK(style.precision.value_or(0) <= kMaxPrecision,
           "a precision of {} is too large; the limit is {}", style.precision.value_or(0),
           kMaxPrecision);
  Digits digits;
  bool negative = std::signbit(value) && !std::isnan(value);
  if (!std::isfinite(value)) {
    const bool upper = style.type == 'E' || style.type == 'F' || style.type == 'G';
    digits.whole = std::isnan(value) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf");
    if (style.type == '%') digits.rest = "%";
  } else {
    const std::string text = positive_text(std::fabs(value), style);
    budget.spend_bytes(text.size());
    const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
    digits.whole = text.substr(0, end);
    digits.rest = text.substr(end);
    const size_t mantissa = std::min(text.find_first_of("eE%"), text.size());
    const bool zero = text.substr(0, mantissa).find_first_of("123456789") == std::string::npos;
    if (style.no_negative_zero && zero) negative = false;
  }
  digits.prefix = sign_text(negative, style.sign);
  return digits;
}

std::string grouped(std::string_view digits, char separator, size_t group, size_t least) {
  std::string out;  // digits in reverse order
  for (size_t i = 0; i < digits.size() || out.size() < least; ++i) {
    if (separator != '\0' && i > 0 && i % group == 0) out += separator;
    out += i < digits.size() ? digits[digits.size() - 1 - i] : '0';
  }
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace megatron::jinja
