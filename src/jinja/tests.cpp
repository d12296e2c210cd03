// `value is name`.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/conversions.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

const Value& only(const Call& call) {
  MG_CHECK(call.positional.size() == 1 && call.keyword.empty(), "the test takes no argument");
  return call.positional[0];
}

const Value& other(const Call& call) {
  MG_CHECK(call.positional.size() + call.keyword.size() == 2, "the test takes 1 argument");
  return call.keyword.empty() ? call.positional[1] : call.keyword[0].second;
}

template <bool (Value::*holds)() const>
Value kind(Call& call) {
  return Value::boolean((only(call).*holds)());
}

Value defined(Call& call) { return Value::boolean(!only(call).is_undefined()); }

template <bool wanted>
Value is_constant(Call& call) {
  const Value& value = only(call);
  return Value::boolean(value.is_boolean() && value.as_boolean() == wanted);
}

template <bool by_index>
Value has_elements(Call& call) {
  const Value& value = only(call);
  const bool passes_by =
      value.is_form(Sequence::Form::view) || value.is_form(Sequence::Form::iterator);
  return Value::boolean(value.is_undefined() || value.is_text() || value.is_dict() ||
                        (value.is_sequence() && !(by_index && passes_by)));
}

Value callable(Call& call) {
  const Value& value = only(call);
  return Value::boolean(value.is_undefined() ||
                        (value.is_object() && value.as_object()->callable()));
}

template <bool (*wanted)(char32_t), bool (*against)(char32_t)>
Value cased(Call& call) {
  const Value& value = only(call);
  const std::string text = to_text(value, call.budget);
  call.budget.spend_bytes(text.size());
  return Value::boolean(is_cased(text, wanted, against));
}

Value names_filter(Call& call) {
  const Value& name = only(call);
  return Value::boolean(name.is_text() && has_filter(name.bytes()));
}

Value names_test(Call& call);
Value escaped(Call& call) { return Value::boolean((only(call), false)); }

bool divides(const Value& value, const Value& by, int64_t rest, Budget& budget) {
  return equal(calculate(Operator::modulo, value, by, budget), Value::integer(rest), budget);
}

template <int rest>
Value halves(Call& call) {
  return Value::boolean(divides(only(call), Value::integer(2), rest, call.budget));
}

Value divisible(Call& call) {
  return Value::boolean(divides(call.positional.at(0), other(call), 0, call.budget));
}

Value same(Call& call) { return Value::boolean(call.positional.at(0).same(other(call))); }

template <Order order>
Value is(Call& call) {
  return Value::boolean(compared(order, call.positional.at(0), other(call), call.budget));
}

constexpr std::array kTests = {
    NamedNative{"!=", is<Order::not_equal>},
    NamedNative{"<", is<Order::less>},
    NamedNative{"<=", is<Order::less_equal>},
    NamedNative{"==", is<Order::equal>},
    NamedNative{">", is<Order::greater>},
    NamedNative{">=", is<Order::greater_equal>},
    NamedNative{"boolean", kind<&Value::is_boolean>},
    NamedNative{"callable", callable},
    NamedNative{"defined", defined},
    NamedNative{"divisibleby", divisible},
    NamedNative{"eq", is<Order::equal>},
    NamedNative{"equalto", is<Order::equal>},
    NamedNative{"escaped", escaped},
    NamedNative{"even", halves<0>},
    NamedNative{"false", is_constant<false>},
    NamedNative{"filter", names_filter},
    NamedNative{"float", kind<&Value::is_real>},
    NamedNative{"ge", is<Order::greater_equal>},
    NamedNative{"greaterthan", is<Order::greater>},
    NamedNative{"gt", is<Order::greater>},
    NamedNative{"in", is<Order::in>},
    NamedNative{"integer", kind<&Value::is_integer>},
    NamedNative{"iterable", has_elements<false>},
    NamedNative{"le", is<Order::less_equal>},
    NamedNative{"lessthan", is<Order::less>},
    NamedNative{"lower", cased<is_lower, is_upper>},
    NamedNative{"lt", is<Order::less>},
    NamedNative{"mapping", kind<&Value::is_dict>},
    NamedNative{"ne", is<Order::not_equal>},
    NamedNative{"none", kind<&Value::is_none>},
    NamedNative{"number", kind<&Value::is_number>},
    NamedNative{"odd", halves<1>},
    NamedNative{"sameas", same},
    NamedNative{"sequence", has_elements<true>},
    NamedNative{"string", kind<&Value::is_text>},
    NamedNative{"test", names_test},
    NamedNative{"true", is_constant<true>},
    NamedNative{"undefined", kind<&Value::is_undefined>},
    NamedNative{"upper", cased<is_upper, is_lower>},
};

Value names_test(Call& call) {
  const Value& name = only(call);
  return Value::boolean(name.is_text() && find_in(kTests, name.bytes()) != nullptr);
}

}  // namespace

Native find_test(std::string_view name) {
  if (const Native native = find_in(kTests, name)) return native;
  std::string names;
  for (const NamedNative& test : kTests) names += std::string(test.name) + ", ";
  fail("test '{}' is not supported; supported are {}", name, names.substr(0, names.size() - 2));
}

}  // namespace megatron::jinja
