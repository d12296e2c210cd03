#include "jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace megatron::jinja {
namespace {

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

[[noreturn]] void unsupported(Operator op, const Value& left, const Value& right) {
  fail("unsupported operand type(s) for {}: '{}' and '{}'", sign_of(op), left.type_name(),
       right.type_name());
}

[[noreturn]] void too_large() { fail("an integer does not fit in 64 bits; use a float"); }

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

bool is_list_or_tuple(const Value& value) {
  return value.is_form(Sequence::Form::list) || value.is_form(Sequence::Form::tuple);
}

Value add(const Value& left, const Value& right, Budget& budget) {
  if (left.is_text() && right.is_text()) {
    budget.spend_bytes(left.bytes().size() + right.bytes().size());
    return Value::text(left.bytes() + right.bytes());
  }
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
    return Value::text(std::move(text));
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

void check_defined(const Value& value) {
  MG_CHECK(!value.is_undefined(), "{}", value.as_missing().reason);
}

Value calculate(Operator op, const Value& left, const Value& right, Budget& budget) {
  MG_CHECK(op != Operator::modulo || !left.is_text(),
           "text % values is not supported; use the filter format, or ~");
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

namespace {

// An integer of 64 bits is exact in a long double of x86-64 and of AArch64.
int compare_numbers(const Value& left, const Value& right) {
  const auto exact = [](const Value& value) -> long double {
    return value.is_real() ? static_cast<long double>(value.as_number())
                           : static_cast<long double>(value.as_whole());
  };
  const long double a = exact(left), b = exact(right);
  return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2;  // 2: not a number
}

bool equal_sequences(const Sequence& left, const Sequence& right, Budget& budget) {
  if (&left == &right) return true;
  return left.form == right.form && left.form != Sequence::Form::iterator &&
         std::equal(left.elements.begin(), left.elements.end(), right.elements.begin(),
                    right.elements.end(),
                    [&](const Value& a, const Value& b) { return equal(a, b, budget); });
}

bool equal_dicts(const Dict& left, const Dict& right, Budget& budget) {
  if (left.members.size() != right.members.size()) return false;
  for (const auto& [key, value] : left.members) {
    const Value* other = nullptr;
    for (const auto& [name, candidate] : right.members) {
      if (equal(key, name, budget)) other = &candidate;
      if (other != nullptr) break;
    }
    if (other == nullptr || !equal(value, *other, budget)) return false;
  }
  return true;
}

[[noreturn]] void no_order(const Value& left, const Value& right, Order order) {
  static constexpr std::string_view kSigns[] = {"<", "<=", ">", ">="};
  fail("'{}' not supported between instances of '{}' and '{}'", kSigns[static_cast<size_t>(order)],
       left.type_name(), right.type_name());
}

// -1, 0, 1, or 2 where a number is NaN.
int order_of(Order wanted, const Value& left, const Value& right, Budget& budget) {
  budget.spend(1);
  check_defined(left);
  check_defined(right);
  if (left.is_number() && right.is_number()) return compare_numbers(left, right);
  if (left.is_text() && right.is_text()) {  // UTF-8 keeps the order of code points
    budget.spend_bytes(std::min(left.bytes().size(), right.bytes().size()));
    const int order = left.bytes().compare(right.bytes());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  const bool sequences = left.is_form(Sequence::Form::list) || left.is_form(Sequence::Form::tuple);
  if (!sequences || !right.is_form(left.as_sequence().form)) no_order(left, right, wanted);
  const Values& a = left.as_sequence().elements;
  const Values& b = right.as_sequence().elements;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i)
    if (!equal(a[i], b[i], budget)) return order_of(wanted, a[i], b[i], budget);
  return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
}

bool contains(const Value& container, const Value& element, Budget& budget) {
  if (container.is_undefined()) return false;
  if (container.is_text()) {
    MG_CHECK(element.is_text(), "'in <string>' requires string as left operand, not {}",
             element.type_name());
    budget.spend_bytes(container.bytes().size());
    return container.bytes().find(element.bytes()) != std::string::npos;
  }
  if (container.is_dict()) {
    check_hashable(element);
    for (const auto& [key, value] : container.as_dict().members)
      if (equal(key, element, budget)) return true;
    return false;
  }
  MG_CHECK(container.is_sequence(), "argument of type '{}' is not iterable", container.type_name());
  Sequence& sequence = container.as_sequence();
  const bool once = sequence.form == Sequence::Form::iterator;
  for (size_t i = sequence.taken; i < sequence.elements.size(); ++i) {
    if (once) sequence.taken = i + 1;
    if (equal(sequence.elements[i], element, budget)) return true;
  }
  return false;
}

}  // namespace

bool compared(Order order, const Value& left, const Value& right, Budget& budget) {
  switch (order) {
    case Order::equal: return equal(left, right, budget);
    case Order::not_equal: return !equal(left, right, budget);
    case Order::in: return contains(right, left, budget);
    case Order::not_in: return !contains(right, left, budget);
    default: break;
  }
  const int sign = order_of(order, left, right, budget);
  if (sign == 0) return order == Order::less_equal || order == Order::greater_equal;
  if (sign < 0) return order == Order::less || order == Order::less_equal;
  return sign == 1 && (order == Order::greater || order == Order::greater_equal);
}

bool equal(const Value& left, const Value& right, Budget& budget) {
  budget.spend(1);
  if (left.is_undefined() || right.is_undefined())
    return left.is_undefined() && right.is_undefined();
  if (left.is_number() && right.is_number()) return compare_numbers(left, right) == 0;
  if (left.is_text() && right.is_text()) {
    if (left.bytes().size() != right.bytes().size()) return false;
    budget.spend_bytes(left.bytes().size());
    return left.bytes() == right.bytes();
  }
  if (left.is_sequence() && right.is_sequence())
    return equal_sequences(left.as_sequence(), right.as_sequence(), budget);
  if (left.is_dict() && right.is_dict()) {
    return &left.as_dict() == &right.as_dict() ||
           equal_dicts(left.as_dict(), right.as_dict(), budget);
  }
  return left.same(right);
}

void check_hashable(const Value& key) {
  if (key.is_form(Sequence::Form::tuple)) {
    for (const Value& element : key.as_sequence().elements) check_hashable(element);
    return;
  }
  MG_CHECK(!key.is_form(Sequence::Form::list) && !key.is_dict(), "unhashable type: '{}'",
           key.type_name());
}

void insert_member(std::vector<std::pair<Value, Value>>& members, const Value& key, Value value,
                   Budget& budget) {
  for (auto& [name, old] : members) {
    if (!equal(name, key, budget)) continue;
    old = std::move(value);
    return;
  }
  members.emplace_back(key, std::move(value));
}

}  // namespace megatron::jinja
