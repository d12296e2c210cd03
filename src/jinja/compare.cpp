// Equality, order and membership.
#include <algorithm>

#include "base/error.h"
#include "jinja/operators.h"

namespace megatron::jinja {
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
  if (left.form != right.form || left.form == Sequence::Form::iterator ||
      left.form == Sequence::Form::values || left.elements.size() != right.elements.size()) {
    return false;
  }
  for (size_t i = 0; i < left.elements.size(); ++i) {
    if (!equal(left.elements[i], right.elements[i], budget)) return false;
  }
  return true;
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

[[noreturn]] void no_order(const Value& left, const Value& right, std::string_view sign) {
  fail("'{}' not supported between instances of '{}' and '{}'", sign, left.type_name(),
       right.type_name());
}

// -1, 0, 1, or 2 where a number is NaN.
int order_of(std::string_view sign, const Value& left, const Value& right, Budget& budget) {
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
  if (!sequences || !right.is_form(left.as_sequence().form)) no_order(left, right, sign);
  const Values& a = left.as_sequence().elements;
  const Values& b = right.as_sequence().elements;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i)
    if (!equal(a[i], b[i], budget)) return order_of(sign, a[i], b[i], budget);
  return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
}

}  // namespace

bool ordered(std::string_view sign, const Value& left, const Value& right, Budget& budget) {
  const int order = order_of(sign, left, right, budget);
  if (order == 2) return false;
  return (order < 0 && sign[0] == '<') || (order > 0 && sign[0] == '>') ||
         (order == 0 && sign.size() > 1);
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

void check_hashable(const Value& key) {
  if (key.is_form(Sequence::Form::tuple)) {
    for (const Value& element : key.as_sequence().elements) check_hashable(element);
    return;
  }
  MG_CHECK(!key.is_form(Sequence::Form::list) && !key.is_dict(), "unhashable type: '{}'",
           key.type_name());
}

}  // namespace megatron::jinja
