#include "jinja/objects.h"

#include <algorithm>

#include "jinja/interpreter.h"
#include "jinja/operators.h"

namespace megatron::jinja {

Parameters::Parameters(const Call& call, std::string_view function,
                       std::initializer_list<std::string_view> names, size_t required)
    : function_(function), names_(names.begin(), names.end()), values_(names.size()) {
  MG_CHECK(call.positional.size() <= names.size(),
           "{}() takes at most {} arguments but {} were given", function, names.size(),
           call.positional.size());
  for (size_t i = 0; i < call.positional.size(); ++i) values_[i] = &call.positional[i];
  for (const auto& [name, value] : call.keyword) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    MG_CHECK(found != names_.end(), "{}() got an unexpected keyword argument '{}'", function, name);
    const auto at = static_cast<size_t>(found - names_.begin());
    MG_CHECK(values_[at] == nullptr, "{}() got multiple values for argument '{}'", function, name);
    values_[at] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    MG_CHECK(values_[i] != nullptr, "{}() missing the required argument '{}'", function, names_[i]);
  }
}

int64_t Parameters::whole(size_t i, int64_t initial) const {
  if (!given(i)) return initial;
  MG_CHECK(values_[i]->is_whole(), "{}(): '{}' must be an integer, not {}", function_, names_[i],
           values_[i]->type_name());
  return values_[i]->as_whole();
}

const std::string& Parameters::text(size_t i) const {
  MG_CHECK(given(i) && values_[i]->is_text(), "{}(): '{}' must be str, not {}", function_,
           names_[i], given(i) ? values_[i]->type_name() : "missing");
  return values_[i]->bytes();
}

Function::Function(Native function, std::optional<Value> owner)
    : native(function), self(std::move(owner)) {
  if (self) depth = self->depth() + 1;
}

Value Function::call(Call& call) {
  if (self) call.positional.insert(call.positional.begin(), *self);
  return native(call);
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [key, value] : scope->variables)
      if (key == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : variables) {
    if (key != name) continue;
    old = std::move(value);
    return;
  }
  variables.emplace_back(name, std::move(value));
}

std::optional<Value> Namespace::attribute(std::string_view name) const {
  const Value* found = members.find(name);
  return found != nullptr ? std::optional(*found) : std::nullopt;
}

void Namespace::set(const std::string& name, Value value) {
  MG_CHECK(name.substr(0, 1) != "_",
           "Chat templates cannot store underscore-prefixed attributes on a namespace, but got "
           "'{}'. Please rename the attribute.",
           name);
  members.set(name, std::move(value));
}

Value Macro::call(Call& call) { return call.interpreter.call_macro(*this, call); }

Loop::Loop(Values loop_elements) : elements(std::move(loop_elements)) {
  for (const Value& element : elements) depth = std::max(depth, element.depth());
  ++depth;
}

namespace {

Loop& loop_of(Call& call) { return dynamic_cast<Loop&>(*call.positional.at(0).as_object()); }

Value cycle(Call& call) {
  const size_t count = call.positional.size() - 1;
  MG_CHECK(count > 0, "no items for cycling given");
  return call.positional[1 + static_cast<size_t>(loop_of(call).index) % count];
}

Value changed(Call& call) {
  Loop& loop = loop_of(call);
  Values seen(call.positional.begin() + 1, call.positional.end());
  const bool same =
      loop.last_seen && equal(Value::tuple(*loop.last_seen), Value::tuple(seen), call.budget);
  loop.last_seen = std::move(seen);
  return Value::boolean(!same);
}

}  // namespace

std::optional<Value> Loop::attribute(std::string_view name) const {
  const auto length = static_cast<int64_t>(elements.size());
  const auto at = static_cast<size_t>(index);
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "length") return Value::integer(length);
  if (name == "previtem")
    return index > 0 ? elements[at - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < length ? elements[at + 1] : Value::undefined("there is no next item");
  MG_CHECK(name == "cycle" || name == "changed",
           "loop.{} is not supported; supported are index, index0, revindex, revindex0, first, "
           "last, length, previtem, nextitem, cycle and changed",
           name);
  const auto self = std::const_pointer_cast<Loop>(shared_from_this());
  return Value::object(
      std::make_shared<Function>(name == "cycle" ? cycle : changed, Value::object(self)));
}

namespace {

Value range(Call& call) {
  const Parameters p(call, "range", {"start", "stop", "step"}, 1);
  if (!p.given(1)) return make_range(0, p.whole(0, 0), 1, call.budget);
  return make_range(p.whole(0, 0), p.whole(1, 0), p.whole(2, 1), call.budget);
}

// Of a dict, if one is given, and of the keywords.
std::vector<std::pair<Value, Value>> members_of(Call& call, const char* function) {
  std::vector<std::pair<Value, Value>> members;
  if (!call.positional.empty()) {
    MG_CHECK(call.positional.size() == 1 && call.positional[0].is_dict(),
             "{}() takes one dict and keywords", function);
    members = call.positional[0].as_dict().members;
  }
  for (const auto& [name, value] : call.keyword)
    insert_member(members, Value::text(name), value, call.budget);
  return members;
}

Value make_dict(Call& call) { return Value::dict(members_of(call, "dict")); }

Value make_namespace(Call& call) {
  auto object = std::make_shared<Namespace>();
  call.interpreter.keep(object);
  for (auto& [key, value] : members_of(call, "namespace")) {
    MG_CHECK(key.is_text(), "a namespace's attribute must have a name, not {}", key.type_name());
    object->set(key.bytes(), value);
  }
  return Value::object(object);
}

Value raise_exception(Call& call) {
  const Parameters p(call, "raise_exception", {"message"}, 1);
  throw Raised(p[0]->is_text() ? p[0]->bytes() : "raise_exception was called without a message");
}

}  // namespace

Keywords standard_functions() {
  const auto function = [](Native native) {
    return Value::object(std::make_shared<Function>(native));
  };
  return {{"range", function(range)},
          {"dict", function(make_dict)},
          {"namespace", function(make_namespace)},
          {"raise_exception", function(raise_exception)}};
}

}  // namespace megatron::jinja
