#include "jinja/operators.h"

#include <algorithm>

#include "base/error.h"
#include "jinja/formatting.h"
#include "jinja/numbers.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

[[noreturn]] void unsupported(Operator op, const Value& left, const Value& right) {
  fail("unsupported operand type(s) for {}: '{}' and '{}'", sign_of(op), left.type_name(),
       right.type_name());
}

Value add(const Value& left, const Value& right, Budget& budget) {
  if (left.is_text() && right.is_text()) {
    budget.spend_bytes(left.bytes().size() + right.bytes().size());
    budget.check_memory(left.bytes().size() + right.bytes().size());
    return Value::text(left.bytes() + right.bytes(), &budget);
  }
  if (left.is_list_or_tuple()) {
    const Sequence& first = left.as_sequence();
    MG_CHECK(right.is_list_or_tuple() && left.is_tuple() == right.is_tuple(),
             "can only concatenate {} (not \"{}\") to {}", left.type_name(), right.type_name(),
             left.type_name());
    const Sequence& second = right.as_sequence();
    const size_t size = first.elements.size() + second.elements.size();
    budget.spend_items(size);
    budget.check_memory(size * sizeof(Value));
    Values elements;
    elements.reserve(size);
    elements.insert(elements.end(), first.elements.begin(), first.elements.end());
    elements.insert(elements.end(), second.elements.begin(), second.elements.end());
    return left.is_tuple() ? Value::tuple(std::move(elements), &budget)
                           : Value::list(std::move(elements), &budget);
  }
  MG_CHECK(!left.is_text(), "can only concatenate str (not \"{}\") to str", right.type_name());
  unsupported(Operator::add, left, right);
}

Value repeat(const Value& value, const Value& by, Budget& budget) {
  const int64_t times = by.as_whole();
  const size_t count = times < 0 ? 0 : static_cast<size_t>(times);
  const size_t unit = value.is_text() ? value.bytes().size() : value.as_sequence().elements.size();
  MG_CHECK(unit == 0 || count < (size_t{1} << 40) / unit, "a value repeated {} times is too long",
           times);
  const size_t total = unit == 0 ? 0 : unit * count;
  budget.check_memory(total * (value.is_text() ? 1 : sizeof(Value)));
  if (value.is_text()) {
    budget.spend_bytes(total);
    std::string text;
    text.reserve(total);
    while (text.size() < total) text += value.bytes();
    return Value::text(std::move(text), &budget);
  }
  budget.spend(static_cast<int64_t>(total));
  Values elements;
  elements.reserve(total);
  const Values& source = value.as_sequence().elements;
  while (elements.size() < total) elements.insert(elements.end(), source.begin(), source.end());
  return value.is_tuple() ? Value::tuple(std::move(elements), &budget)
                          : Value::list(std::move(elements), &budget);
}

Value multiply(const Value& left, const Value& right, Budget& budget) {
  const auto repeats = [](const Value& value) {
    return value.is_text() || value.is_list_or_tuple();
  };
  if (repeats(left) && right.is_whole()) return repeat(left, right, budget);
  if (repeats(right) && left.is_whole()) return repeat(right, left, budget);
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
  check_defined(left);
  if (op == Operator::modulo && left.is_text())
    return Value::text(percent_format(left.bytes(), right, budget), &budget);
  check_defined(right);
  if (left.is_number() && right.is_number()) return calculate_numbers(op, left, right, budget);
  if (op == Operator::add) return add(left, right, budget);
  if (op == Operator::multiply) return multiply(left, right, budget);
  unsupported(op, left, right);
}

Value negative(const Value& value) {
  check_defined(value);
  if (value.is_real()) return Value::real(-value.as_number());
  MG_CHECK(value.is_whole(), "bad operand type for unary -: '{}'", value.type_name());
  return Value::integer(-value.as_big());
}

Value positive(const Value& value) {
  check_defined(value);
  MG_CHECK(value.is_number(), "bad operand type for unary +: '{}'", value.type_name());
  return value.is_boolean() ? Value::integer(value.as_whole()) : value;
}

namespace {

bool equal_sequences(const Sequence& left, const Sequence& right, Budget& budget) {
  if (&left == &right) return true;
  const auto form = [](const Sequence& sequence) {
    return sequence.form == Sequence::Form::group ? Sequence::Form::tuple : sequence.form;
  };
  return form(left) == form(right) && left.form != Sequence::Form::iterator &&
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

// Returns -1, 0 or 1, or 2 if a number is NaN.
int order_of(Order wanted, const Value& left, const Value& right, Budget& budget) {
  budget.spend(1);
  check_defined(left);
  check_defined(right);
  if (left.is_number() && right.is_number()) return compare_numbers(left, right);
  if (left.is_text() && right.is_text()) {  // UTF-8 preserves the order of code points
    budget.spend_bytes(std::min(left.bytes().size(), right.bytes().size()));
    const int order = left.bytes().compare(right.bytes());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  const bool sequences = left.is_list_or_tuple() && right.is_list_or_tuple();
  if (!sequences || left.is_tuple() != right.is_tuple()) no_order(left, right, wanted);
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
    return find_text(container.bytes(), element.bytes()) != std::string::npos;
  }
  if (container.is_dict()) {
    check_hashable(element, budget);
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

void check_hashable(const Value& key, Budget& budget) {
  if (key.is_tuple()) {
    budget.spend(1);
    for (const Value& element : key.as_sequence().elements) check_hashable(element, budget);
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
