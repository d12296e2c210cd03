#include "jinja/numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

// Returns the result if it fits in 64 bits.
std::optional<int64_t> small_result(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = true;
  if (op == Operator::add) overflow = __builtin_add_overflow(a, b, &result);
  if (op == Operator::subtract) overflow = __builtin_sub_overflow(a, b, &result);
  if (op == Operator::multiply) overflow = __builtin_mul_overflow(a, b, &result);
  const bool divides = op == Operator::floor_divide || op == Operator::modulo;
  if (divides && b != 0 && b != -1) {
    const int64_t rest = a % b;
    const bool up = rest != 0 && (rest < 0) != (b < 0);
    return op == Operator::modulo ? rest + (up ? b : 0) : a / b - (up ? 1 : 0);
  }
  return overflow ? std::nullopt : std::optional(result);
}

Value power(const BigInteger& base, const Value& exponent, Budget& budget) {
  if (exponent.as_big().is_negative()) {
    MG_CHECK(!base.is_zero(), "0.0 cannot be raised to a negative power");
    return Value::real(std::pow(base.nearest(), exponent.as_number()));
  }
  if (base.bits() <= 1 && exponent.is_big()) {  // -1, 0 or 1
    const bool odd = exponent.as_big().divided(2).second.compare(1) == 0;
    return Value::integer(base.is_negative() && !odd ? BigInteger(1) : base);
  }
  MG_CHECK(!exponent.is_big(), "an integer has more than {} digits, which is the limit",
           BigInteger::kMaxDigits);
  budget.spend(1000);  // upper bound for any power
  return Value::integer(base.to_power(static_cast<uint64_t>(exponent.as_whole())));
}

Value whole_result(Operator op, const Value& left, const Value& right, Budget& budget) {
  if (!left.is_big() && !right.is_big()) {
    if (const auto small = small_result(op, left.as_whole(), right.as_whole()))
      return Value::integer(*small);
  }
  const BigInteger a = left.as_big(), b = right.as_big();
  budget.spend(static_cast<int64_t>(a.size() * b.size() / 64));
  switch (op) {
    case Operator::add: return Value::integer(a + b);
    case Operator::subtract: return Value::integer(a - b);
    case Operator::multiply: return Value::integer(a * b);
    case Operator::divide:
      MG_CHECK(!b.is_zero(), "division by zero");
      if (a.bits() <= 53 && b.bits() <= 53) return Value::real(a.nearest() / b.nearest());
      return Value::real(a.ratio(b));
    case Operator::floor_divide:
      MG_CHECK(!b.is_zero(), "integer division or modulo by zero");
      return Value::integer(a.divided(b).first);
    case Operator::modulo:
      MG_CHECK(!b.is_zero(), "integer modulo by zero");
      return Value::integer(a.divided(b).second);
    case Operator::power: return power(a, right, budget);
  }
  return Value();
}

double real_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double real_floor_divide(double a, double b) {
  const double quotient = (a - real_modulo(a, b)) / b;
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value real_result(Operator op, double a, double b) {
  switch (op) {
    case Operator::add: return Value::real(a + b);
    case Operator::subtract: return Value::real(a - b);
    case Operator::multiply: return Value::real(a * b);
    case Operator::divide: MG_CHECK(b != 0, "float division by zero"); return Value::real(a / b);
    case Operator::floor_divide:
      MG_CHECK(b != 0, "float floor division by zero");
      return Value::real(real_floor_divide(a, b));
    case Operator::modulo: MG_CHECK(b != 0, "float modulo"); return Value::real(real_modulo(a, b));
    case Operator::power: {
      MG_CHECK(a != 0 || b >= 0, "0.0 cannot be raised to a negative power");
      MG_CHECK(a >= 0 || b == std::floor(b),
               "a negative number cannot be raised to a fractional power");
      const double result = std::pow(a, b);
      MG_CHECK(!std::isinf(result) || std::isinf(a) || std::isinf(b),
               "(34, 'Numerical result out of range')");
      return Value::real(result);
    }
  }
  return Value();
}

// Returns digits of all scripts as ASCII, without the underscores between digits (or letters, as in
// base 16). Returns nullopt if there is an underscore elsewhere.
std::optional<std::string> plain_digits(std::string_view text, bool letters) {
  std::string out;
  bool digit = false, underscore = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    if (c == '_') {
      if (!digit) return std::nullopt;
      digit = false;
      underscore = true;
      continue;
    }
    const int value = decimal_value(c);
    const bool letter = letters && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'));
    if (underscore && value < 0 && !letter) return std::nullopt;
    digit = value >= 0 || letter;
    underscore = false;
    if (value >= 0) {
      out += static_cast<char>('0' + value);
    } else {
      append_character(c, out);
    }
  }
  if (underscore) return std::nullopt;
  return out;
}

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
}

// Removes a prefix such as "0x" and returns the base that it names; 0 if there is none.
int64_t prefixed_base(std::string_view& digits, int64_t wanted) {
  if (digits.size() < 3 || digits[0] != '0') return 0;
  const char letter = static_cast<char>(digits[1] | 0x20);
  const int64_t base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (base == 0 || (wanted != 0 && wanted != base)) return 0;
  digits.remove_prefix(2);
  return base;
}

BigInteger ten_to(int64_t exponent) {
  return BigInteger(10).to_power(static_cast<uint64_t>(exponent));
}

// Rounds `whole` to a multiple of 10^places. above: a fraction follows it.
BigInteger rounded_whole(const BigInteger& whole, int64_t places, bool above) {
  const BigInteger unit = ten_to(places);
  auto [quotient, rest] = whole.divided(unit);
  const int half = (rest + rest).compare(unit);
  const bool odd = quotient.divided(2).second.compare(0) != 0;
  if (half > 0 || (half == 0 && (above || odd))) quotient = quotient + 1;
  return quotient * unit;
}

}  // namespace

Value calculate_numbers(Operator op, const Value& left, const Value& right, Budget& budget) {
  if (left.is_whole() && right.is_whole()) return whole_result(op, left, right, budget);
  return real_result(op, left.as_number(), right.as_number());
}

int compare_numbers(const Value& left, const Value& right) {
  if (left.is_real() && right.is_real()) {
    const double a = left.as_number(), b = right.as_number();
    return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2;
  }
  if (left.is_real()) {
    const int order = compare_numbers(right, left);
    return order == 2 ? 2 : -order;
  }
  if (right.is_real()) {
    const double b = right.as_number();
    if (std::isnan(b)) return 2;
    if (std::isinf(b)) return b > 0 ? -1 : 1;
    const int order = left.as_big().compare(BigInteger::truncated(b));
    const double fraction = b - std::trunc(b);
    return order != 0 || fraction == 0 ? order : fraction > 0 ? -1 : 1;
  }
  if (left.is_big() || right.is_big()) return left.as_big().compare(right.as_big());
  const int64_t a = left.as_whole(), b = right.as_whole();
  return a < b ? -1 : a > b ? 1 : 0;
}

Value rounded(const Value& number, int64_t places) {
  if (number.is_whole()) {
    const BigInteger whole = number.as_big();
    if (places >= 0) return Value::integer(whole);
    if (-places > static_cast<int64_t>(BigInteger::kMaxDigits)) return Value::integer(0);
    const BigInteger result = rounded_whole(whole.is_negative() ? -whole : whole, -places, false);
    return Value::integer(whole.is_negative() ? -result : result);
  }
  const double value = number.as_number();
  if (!std::isfinite(value) || places > 330) return number;
  if (places >= 0)
    return Value::real(std::strtod(fmt::format("{:.{}f}", value, places).c_str(), nullptr));
  if (places < -310) return Value::real(std::copysign(0.0, value));
  const double above = std::fabs(value);
  const BigInteger result =
      rounded_whole(BigInteger::truncated(above), -places, above != std::trunc(above));
  return Value::real(std::copysign(result.nearest(), value));
}

Value absolute_value(const Value& number) {
  if (number.is_real()) return Value::real(std::fabs(number.as_number()));
  const BigInteger whole = number.as_big();
  return Value::integer(whole.is_negative() ? -whole : whole);
}

std::optional<Value> truncated(double number) {
  if (!std::isfinite(number)) return std::nullopt;
  return Value::integer(BigInteger::truncated(number));
}

std::optional<Value> read_integer(std::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  text = strip_space(text, true, true);
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.remove_prefix(1);
  std::string_view body = text;
  const int64_t prefix = prefixed_base(body, base);
  if (prefix != 0 && body.starts_with('_')) body.remove_prefix(1);
  const std::optional<std::string> digits = plain_digits(body, true);
  const int64_t used = prefix != 0 ? prefix : base == 0 ? 10 : base;
  if (!digits || digits->empty()) return std::nullopt;
  if (std::any_of(digits->begin(), digits->end(), [&](char c) { return digit_value(c) >= used; }))
    return std::nullopt;
  const bool zero = digits->find_first_not_of('0') == std::string::npos;
  if (base == 0 && prefix == 0 && digits->front() == '0' && !zero) return std::nullopt;
  if ((used & (used - 1)) != 0 && digits->size() > BigInteger::kMaxDigits) return std::nullopt;
  const BigInteger whole = BigInteger::parse(*digits, static_cast<int>(used));
  return Value::integer(minus ? -whole : whole);
}

std::optional<double> read_real(std::string_view text) {
  const std::optional<std::string> digits = plain_digits(strip_space(text, true, true), false);
  if (!digits || digits->empty() || digits->find_first_of("xX(pP") != std::string::npos)
    return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(digits->c_str(), &end);
  if (end != digits->c_str() + digits->size()) return std::nullopt;
  return number;
}

std::string text_of_integer(const Value& whole, Budget& budget, int base) {
  if (base == 10 && !whole.is_big()) return fmt::format("{}", whole.as_whole());
  const BigInteger value = whole.as_big();
  budget.spend(static_cast<int64_t>(value.size() * value.size() / 8));
  return value.text(base);
}

std::string repr_of_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string scientific(buffer, end.ptr);  // d.ddde[+-]xx
  const size_t mark = scientific.find('e');
  int exponent = 0;
  const char* digits = scientific.data() + mark + 1;
  if (*digits == '+') ++digits;
  std::from_chars(digits, scientific.data() + scientific.size(), exponent);
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  const std::string text(buffer, fixed.ptr);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

}  // namespace megatron::jinja
