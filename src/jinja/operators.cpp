#include "jinja/operators.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "jinja/conversions.h"
#include "jinja/format.h"

namespace megatron::jinja {
namespace {

[[noreturn]] void unsupported(Operator op, const Value& left, const Value& right) {
  fail("unsupported operand type(s) for {}: '{}' and '{}'", sign_of(op), left.type_name(),
       right.type_name());
}

[[noreturn]] void too_large() { fail("an integer beyond 64 bits; use a float"); }

int64_t floor_divide(int64_t a, int64_t b) {
  if (a == std::numeric_limits<int64_t>::min() && b == -1) too_large();
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

int64_t modulo(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (true) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) too_large();
    exponent >>= 1;
    if (exponent == 0) return result;
    if (__builtin_mul_overflow(base, base, &base)) too_large();
  }
}

Value whole_result(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::add:
      if (__builtin_add_overflow(a, b, &result)) too_large();
      return Value::integer(result);
    case Operator::subtract:
      if (__builtin_sub_overflow(a, b, &result)) too_large();
      return Value::integer(result);
    case Operator::multiply:
      if (__builtin_mul_overflow(a, b, &result)) too_large();
      return Value::integer(result);
    case Operator::divide:
      MG_CHECK(b != 0, "division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Operator::floor_divide:
      MG_CHECK(b != 0, "integer division or modulo by zero");
      return Value::integer(floor_divide(a, b));
    case Operator::modulo:
      MG_CHECK(b != 0, "integer modulo by zero");
      return Value::integer(modulo(a, b));
    case Operator::power:
      if (b >= 0) return Value::integer(integer_power(a, b));
      MG_CHECK(a != 0, "0.0 cannot be raised to a negative power");
      return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
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
      MG_CHECK(a >= 0 || b == std::floor(b), "a negative number to a power that is not whole");
      const double result = std::pow(a, b);
      MG_CHECK(!std::isinf(result) || std::isinf(a) || std::isinf(b), "Result too large");
      return Value::real(result);
    }
  }
  return Value();
}

Value add_texts(const Text& left, const Text& right, Budget& budget) {
  const bool markup = left.markup || right.markup;
  const auto safe = [&](const Text& text) {
    return markup && !text.markup ? escape_html(text.bytes) : text.bytes;
  };
  budget.spend_bytes(left.bytes.size() + right.bytes.size());
  return Value::text(safe(left) + safe(right), markup);
}

bool is_list_or_tuple(const Value& value) {
  return value.is_form(Sequence::Form::list) || value.is_form(Sequence::Form::tuple);
}

Value add(const Value& left, const Value& right, Budget& budget) {
  if (left.is_text() && right.is_text()) return add_texts(left.as_text(), right.as_text(), budget);
  if (is_list_or_tuple(left)) {
    const Sequence& first = left.as_sequence();
    MG_CHECK(right.is_form(first.form), "can only concatenate {} (not \"{}\") to {}",
             left.type_name(), right.type_name(), left.type_name());
    const Sequence& second = right.as_sequence();
    Values elements = first.elements;
    budget.spend_items(elements.size() + second.elements.size());
    elements.insert(elements.end(), second.elements.begin(), second.elements.end());
    return Value::sequence(first.form, std::move(elements));
  }
  MG_CHECK(!left.is_text(), "can only concatenate str (not \"{}\") to str", right.type_name());
  unsupported(Operator::add, left, right);
}

Value repeat(const Value& value, int64_t times, Budget& budget) {
  const size_t count = times < 0 ? 0 : static_cast<size_t>(times);
  const size_t unit = value.is_text() ? value.bytes().size() : value.as_sequence().elements.size();
  MG_CHECK(unit == 0 || count < (size_t{1} << 40) / unit, "a value repeated {} times is too long",
           times);
  if (value.is_text()) {
    budget.spend_bytes(unit * count);
    std::string text;
    text.reserve(unit * count);
    for (size_t i = 0; unit > 0 && i < count; ++i) text += value.bytes();
    return Value::text(std::move(text), value.as_text().markup);
  }
  budget.spend(static_cast<int64_t>(unit * count));
  Values elements;
  const Values& source = value.as_sequence().elements;
  for (size_t i = 0; unit > 0 && i < count; ++i)
    elements.insert(elements.end(), source.begin(), source.end());
  return Value::sequence(value.as_sequence().form, std::move(elements));
}

Value multiply(const Value& left, const Value& right, Budget& budget) {
  const auto repeats = [](const Value& value) {
    return value.is_text() || is_list_or_tuple(value);
  };
  if (repeats(left) && right.is_whole()) return repeat(left, right.as_whole(), budget);
  if (repeats(right) && left.is_whole()) return repeat(right, left.as_whole(), budget);
  MG_CHECK(!repeats(left), "can't multiply sequence by non-int of type '{}'", right.type_name());
  unsupported(Operator::multiply, left, right);
}

}  // namespace

std::string_view sign_of(Operator op) {
  switch (op) {
    case Operator::add: return "+";
    case Operator::subtract: return "-";
    case Operator::multiply: return "*";
    case Operator::divide: return "/";
    case Operator::floor_divide: return "//";
    case Operator::modulo: return "%";
    case Operator::power: return "** or pow()";
  }
  return "";
}

void check_defined(const Value& value) {
  MG_CHECK(!value.is_undefined(), "{}", value.as_missing().reason);
}

Value calculate(Operator op, const Value& left, const Value& right, Budget& budget) {
  if (op == Operator::modulo && left.is_text()) return format_percent(left, right, budget);
  check_defined(left);
  check_defined(right);
  if (left.is_whole() && right.is_whole())
    return whole_result(op, left.as_whole(), right.as_whole());
  if (left.is_number() && right.is_number())
    return real_result(op, left.as_number(), right.as_number());
  if (op == Operator::add) return add(left, right, budget);
  if (op == Operator::multiply) return multiply(left, right, budget);
  unsupported(op, left, right);
}

Value negative(const Value& value) {
  check_defined(value);
  if (value.is_real()) return Value::real(-value.as_number());
  MG_CHECK(value.is_whole(), "bad operand type for unary -: '{}'", value.type_name());
  return whole_result(Operator::subtract, 0, value.as_whole());
}

Value positive(const Value& value) {
  check_defined(value);
  MG_CHECK(value.is_number(), "bad operand type for unary +: '{}'", value.type_name());
  return value.is_boolean() ? Value::integer(value.as_whole()) : value;
}

Value make_range(int64_t begin, int64_t end, int64_t step, Budget& budget) {
  constexpr uint64_t kMost = 100000;
  MG_CHECK(step != 0, "range() arg 3 must not be zero");
  const bool any = step > 0 ? begin < end : begin > end;
  const auto distance = step > 0 ? static_cast<uint64_t>(end) - static_cast<uint64_t>(begin)
                                 : static_cast<uint64_t>(begin) - static_cast<uint64_t>(end);
  const uint64_t stride =
      step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  const uint64_t count = any ? (distance - 1) / stride + 1 : 0;
  MG_CHECK(count <= kMost, "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).",
           kMost);
  budget.spend_items(count);
  Values elements;
  for (uint64_t i = 0; i < count; ++i)
    elements.push_back(Value::integer(begin + static_cast<int64_t>(i) * step));
  return Value::sequence(Sequence::Form::range, std::move(elements),
                         step == 1 ? fmt::format("range({}, {})", begin, end)
                                   : fmt::format("range({}, {}, {})", begin, end, step));
}

}  // namespace megatron::jinja
