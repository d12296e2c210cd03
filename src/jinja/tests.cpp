// `value is name`.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

const Value& only(const Call& call) {
  MG_CHECK(call.positional.size() == 1 && call.keyword.empty(),
           "the test takes no argument, and {} were given",
           call.positional.size() - 1 + call.keyword.size());
  return call.positional[0];
}

const Value& other(const Call& call) {
  MG_CHECK(call.positional.size() == 2 && call.keyword.empty(),
           "the test takes 1 argument, and {} were given",
           call.positional.size() - 1 + call.keyword.size());
  return call.positional[1];
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

Value iterable(Call& call) {
  const Value& value = only(call);
  return Value::boolean(value.is_undefined() || value.is_text() || value.is_dict() ||
                        value.is_sequence());
}

Value sequence(Call& call) {
  const Value& value = only(call);
  using Form = Sequence::Form;
  return Value::boolean(value.is_undefined() || value.is_text() || value.is_dict() ||
                        value.is_form(Form::list) || value.is_form(Form::tuple) ||
                        value.is_form(Form::range));
}

Value callable(Call& call) {
  const Value& value = only(call);
  return Value::boolean(value.is_undefined() ||
                        (value.is_object() && value.as_object()->callable()));
}

Value escaped(Call& call) {
  const Value& value = only(call);
  return Value::boolean(value.is_text() && value.as_text().markup);
}

template <bool (*wanted)(char32_t), bool (*against)(char32_t)>
Value cased(Call& call) {
  const Value& value = only(call);
  if (!value.is_text()) return Value::boolean(false);
  call.budget.spend_bytes(value.bytes().size());
  bool found = false;
  for (const char32_t c : code_points(value.bytes())) {
    if (against(c) || is_title(c)) return Value::boolean(false);
    found = found || wanted(c);
  }
  return Value::boolean(found);
}

bool divides(const Value& value, const Value& by, int64_t rest, Budget& budget) {
  return equal(calculate(Operator::modulo, value, by, budget), Value::integer(rest), budget);
}

Value even(Call& call) {
  return Value::boolean(divides(only(call), Value::integer(2), 0, call.budget));
}

Value odd(Call& call) {
  return Value::boolean(divides(only(call), Value::integer(2), 1, call.budget));
}

Value divisible(Call& call) {
  const Value& by = other(call);
  return Value::boolean(divides(call.positional[0], by, 0, call.budget));
}

Value same(Call& call) {
  const Value& value = other(call);
  return Value::boolean(call.positional[0].same(value));
}

Value within(Call& call) {
  const Value& container = other(call);
  return Value::boolean(contains(container, call.positional[0], call.budget));
}

template <bool wanted>
Value is_equal(Call& call) {
  const Value& value = other(call);
  return Value::boolean(equal(call.positional[0], value, call.budget) == wanted);
}

constexpr char kLess[] = "<", kLessEqual[] = "<=", kGreater[] = ">", kGreaterEqual[] = ">=";

template <const char* sign>
Value is_ordered(Call& call) {
  const Value& value = other(call);
  return Value::boolean(ordered(sign, call.positional[0], value, call.budget));
}

Value is_filter(Call& call) {
  const Value& name = only(call);
  return Value::boolean(name.is_text() && find_filter(name.bytes()) != nullptr);
}

Value is_test(Call& call) {
  const Value& name = only(call);
  return Value::boolean(name.is_text() && find_test(name.bytes()) != nullptr);
}

constexpr std::array kTests = {
    NamedNative{"!=", is_equal<false>},
    NamedNative{"<", is_ordered<kLess>},
    NamedNative{"<=", is_ordered<kLessEqual>},
    NamedNative{"==", is_equal<true>},
    NamedNative{">", is_ordered<kGreater>},
    NamedNative{">=", is_ordered<kGreaterEqual>},
    NamedNative{"boolean", kind<&Value::is_boolean>},
    NamedNative{"callable", callable},
    NamedNative{"defined", defined},
    NamedNative{"divisibleby", divisible},
    NamedNative{"eq", is_equal<true>},
    NamedNative{"equalto", is_equal<true>},
    NamedNative{"escaped", escaped},
    NamedNative{"even", even},
    NamedNative{"false", is_constant<false>},
    NamedNative{"filter", is_filter},
    NamedNative{"float", kind<&Value::is_real>},
    NamedNative{"ge", is_ordered<kGreaterEqual>},
    NamedNative{"greaterthan", is_ordered<kGreater>},
    NamedNative{"gt", is_ordered<kGreater>},
    NamedNative{"in", within},
    NamedNative{"integer", kind<&Value::is_integer>},
    NamedNative{"iterable", iterable},
    NamedNative{"le", is_ordered<kLessEqual>},
    NamedNative{"lessthan", is_ordered<kLess>},
    NamedNative{"lower", cased<is_lower, is_upper>},
    NamedNative{"lt", is_ordered<kLess>},
    NamedNative{"mapping", kind<&Value::is_dict>},
    NamedNative{"ne", is_equal<false>},
    NamedNative{"none", kind<&Value::is_none>},
    NamedNative{"number", kind<&Value::is_number>},
    NamedNative{"odd", odd},
    NamedNative{"sameas", same},
    NamedNative{"sequence", sequence},
    NamedNative{"string", kind<&Value::is_text>},
    NamedNative{"test", is_test},
    NamedNative{"true", is_constant<true>},
    NamedNative{"undefined", kind<&Value::is_undefined>},
    NamedNative{"upper", cased<is_upper, is_lower>},
};

}  // namespace

Native find_test(std::string_view name) {
  const auto* found = std::find_if(kTests.begin(), kTests.end(),
                                   [&](const NamedNative& test) { return test.name == name; });
  return found != kTests.end() ? found->native : nullptr;
}

}  // namespace megatron::jinja
