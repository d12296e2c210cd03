#include "jinja/methods.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/operators.h"

namespace megatron::jinja {
namespace {

struct Bound : Object {
  Bound(Value owner, std::string_view method, Native function)
      : self(std::move(owner)), name(method), native(function) {
    depth = self.depth() + 1;
  }
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string shown() const override {
    return "<built-in method " + name + " of " + self.type_name() + " object>";
  }
  bool callable() const override { return true; }
  Value call(Call& call) override {
    call.positional.insert(call.positional.begin(), self);
    return native(call);
  }

  Value self;
  std::string name;
  Native native;
};

struct Method {
  std::string_view name;
  Native native;
};

Value dict_get(Call& call) {
  const Parameters p(call, "get", {"self", "key", "default"}, 2);
  check_hashable(*p[1]);
  const Value initial = p.given(2) ? *p[2] : Value();
  const Dict& dict = p[0]->as_dict();
  call.budget.spend_items(dict.members.size());
  for (const auto& [key, value] : dict.members)
    if (equal(key, *p[1], call.budget)) return value;
  return initial;
}

Value dict_items(Call& call) {
  const Parameters p(call, "items", {"self"}, 1);
  Values items;
  for (const auto& [key, value] : p[0]->as_dict().members)
    items.push_back(Value::tuple({key, value}));
  call.budget.spend(static_cast<int64_t>(items.size()));
  return Value::sequence(Sequence::Form::items, std::move(items));
}

Value dict_keys(Call& call) {
  const Parameters p(call, "keys", {"self"}, 1);
  return Value::sequence(Sequence::Form::keys, elements_of(*p[0], call.budget));
}

Value dict_values(Call& call) {
  const Parameters p(call, "values", {"self"}, 1);
  Values values;
  for (const auto& [key, value] : p[0]->as_dict().members) values.push_back(value);
  call.budget.spend_items(values.size());
  return Value::sequence(Sequence::Form::values, std::move(values));
}

Value same_value(Call& call) { return *Parameters(call, "copy", {"self"}, 1)[0]; }

Value list_count(Call& call) {
  const Parameters p(call, "count", {"self", "value"}, 2);
  int64_t count = 0;
  for (const Value& element : p[0]->as_sequence().elements)
    count += equal(element, *p[1], call.budget);
  return Value::integer(count);
}

Value list_index(Call& call) {
  const Parameters p(call, "index", {"self", "value"}, 2);
  const Values& elements = p[0]->as_sequence().elements;
  for (size_t i = 0; i < elements.size(); ++i)
    if (equal(elements[i], *p[1], call.budget)) return Value::integer(static_cast<int64_t>(i));
  fail("the value is not in the {}", p[0]->type_name());
}

constexpr std::array kDictMethods = {
    Method{"get", dict_get},       Method{"items", dict_items}, Method{"keys", dict_keys},
    Method{"values", dict_values}, Method{"copy", same_value},
};
constexpr std::array kListMethods = {Method{"count", list_count}, Method{"index", list_index},
                                     Method{"copy", same_value}};

constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear", "pop",    "reverse",
                                                          "insert", "sort",  "extend", "remove"};
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault",
                                                          "update"};

template <class Names>
bool among(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <class Methods>
Native find_in(const Methods& methods, std::string_view name) {
  for (const Method& method : methods)
    if (method.name == name) return method.native;
  return nullptr;
}

}  // namespace

std::optional<Value> method_of(const Value& value, std::string_view name) {
  Native native = nullptr;
  if (value.is_text()) native = find_text_method(name);
  if (value.is_dict()) native = find_in(kDictMethods, name);
  if (value.is_form(Sequence::Form::list)) native = find_in(kListMethods, name);
  if (value.is_form(Sequence::Form::tuple) && name != "copy") native = find_in(kListMethods, name);
  if (native == nullptr) return std::nullopt;
  return Value::object(std::make_shared<Bound>(value, name, native));
}

bool is_unsafe(const Value& value, std::string_view name) {
  if (value.is_form(Sequence::Form::list) && among(kListChanges, name)) return true;
  if (value.is_dict() && among(kDictChanges, name)) return true;
  return name.substr(0, 2) == "__" && (!value.is_dict() || value.as_dict().find(name) == nullptr);
}

}  // namespace megatron::jinja
