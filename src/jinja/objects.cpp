#include "jinja/objects.h"

#include <algorithm>

#include "jinja/ast.h"
#include "jinja/conversions.h"
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

Function::Function(Native function, std::optional<Value> owner, Budget* budget)
    : native(function), self(std::move(owner)), held(budget, sizeof(Function)) {
  if (self) depth = self->depth() + 1;
}

Value Function::call(Call& call) {
  if (self) call.positional.insert(call.positional.begin(), *self);
  return native(call);
}

const Value* Scope::find(std::string_view name, Budget& budget) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    budget.spend_items(scope->variables.size());
    for (const auto& [key, value] : scope->variables)
      if (key == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value, Budget& budget) {
  budget.spend_items(variables.size());
  for (auto& [key, old] : variables) {
    if (key != name) continue;
    old = std::move(value);
    return;
  }
  variables.emplace_back(name, std::move(value));
}

std::string Namespace::shown(Budget& budget) const {
  std::vector<std::pair<Value, Value>> pairs;
  for (const auto& [key, value] : members.variables) pairs.emplace_back(Value::text(key), value);
  return "<Namespace " + repr(Value::dict(std::move(pairs), &budget), budget) + ">";
}

std::optional<Value> Namespace::attribute(std::string_view name, Budget& budget) const {
  const Value* found = members.find(name, budget);
  return found != nullptr ? std::optional(*found) : std::nullopt;
}

void Namespace::set(const std::string& name, Value value, Budget& budget) {
  MG_CHECK(name.substr(0, 1) != "_",
           "Chat templates cannot store underscore-prefixed attributes on a namespace, but got "
           "'{}'. Please rename the attribute.",
           name);
  members.set(name, std::move(value), budget);
}

// ---- macros and loops

std::string Macro::shown(Budget&) const {
  return statement->kind == Statement::Kind::call ? "<Macro anonymous>"
                                                  : "<Macro " + repr_of_text(statement->text) + ">";
}

std::optional<Value> Macro::attribute(std::string_view name, Budget& budget) const {
  if (name == "name") return Value::text(statement->text);
  if (name == "catch_varargs") return Value::boolean(statement->reads_varargs);
  if (name == "catch_kwargs") return Value::boolean(statement->reads_kwargs);
  if (name == "caller") return Value::boolean(statement->reads_caller);
  if (name != "arguments") return std::nullopt;
  Values names;
  for (const Parameter& parameter : statement->parameters)
    names.push_back(Value::text(parameter.name));
  return Value::tuple(std::move(names), &budget);
}

Value Macro::call(Call& call) { return call.interpreter.call_macro(*this, call); }

Loop::Loop(Values loop_elements, Budget& budget)
    : elements(std::move(loop_elements)), held(&budget, elements.capacity() * sizeof(Value)) {
  for (const Value& element : elements) depth = std::max(depth, element.depth());
  ++depth;
}

std::string Loop::shown(Budget&) const {
  return fmt::format("<LoopContext {}/{}>", index + 1, elements.size());
}

Value Loop::call(Call& call) {
  const Parameters p(call, "loop", {"iterable"}, 1);
  MG_CHECK(scope != nullptr, "The loop must have the 'recursive' marker to be called recursively.");
  return call.interpreter.call_loop(*this, *p[0]);
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
  const bool same = loop.last_seen && equal(Value::tuple(*loop.last_seen, &call.budget),
                                            Value::tuple(seen, &call.budget), call.budget);
  loop.last_seen = std::move(seen);
  return Value::boolean(!same);
}

}  // namespace

std::optional<Value> Loop::attribute(std::string_view name, Budget& budget) const {
  const auto length = static_cast<int64_t>(elements.size());
  const auto at = static_cast<size_t>(index);
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "length") return Value::integer(length);
  if (name == "depth") return Value::integer(level + 1);
  if (name == "depth0") return Value::integer(level);
  if (name == "previtem")
    return index > 0 ? elements[at - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < length ? elements[at + 1] : Value::undefined("there is no next item");
  if (name != "cycle" && name != "changed") return std::nullopt;
  const auto self = std::const_pointer_cast<Loop>(shared_from_this());
  return Value::object(
      std::make_shared<Function>(name == "cycle" ? cycle : changed, Value::object(self), &budget));
}

// ---- global functions

namespace {

struct Cycler : Object, std::enable_shared_from_this<Cycler> {
  Cycler(Values cycled, Budget& budget)
      : items(std::move(cycled)), held(&budget, sizeof(Cycler) + items.capacity() * sizeof(Value)) {
    for (const Value& item : items) depth = std::max(depth, item.depth());
    ++depth;
  }
  std::string type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(std::string_view name, Budget& budget) const override {
    if (name == "current") return items[at];
    if (name != "next" && name != "reset") return std::nullopt;
    const auto self = std::const_pointer_cast<Cycler>(shared_from_this());
    return Value::object(
        std::make_shared<Function>(name == "next" ? next : reset, Value::object(self), &budget));
  }

  static Cycler& of(Call& call) {
    return dynamic_cast<Cycler&>(*call.positional.at(0).as_object());
  }
  static Value next(Call& call) {
    const Parameters p(call, "next", {"self"}, 1);
    Cycler& cycler = of(call);
    const size_t taken = std::exchange(cycler.at, (cycler.at + 1) % cycler.items.size());
    return cycler.items[taken];
  }
  static Value reset(Call& call) {
    const Parameters p(call, "reset", {"self"}, 1);
    of(call).at = 0;
    return Value();
  }

  Values items;
  size_t at = 0;
  Budget::Held held;
};

struct Joiner : Object {
  Joiner(Value between, Budget& budget)
      : separator(std::move(between)), held(&budget, sizeof(Joiner)) {
    depth = separator.depth() + 1;
  }
  std::string type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Call& call) override {
    const Parameters p(call, "joiner", {}, 0);
    return std::exchange(used, true) ? separator : Value::text("");
  }

  Value separator;
  bool used = false;
  Budget::Held held;
};

Value make_cycler(Call& call) {
  MG_CHECK(call.keyword.empty(), "cycler() takes no keyword arguments");
  MG_CHECK(!call.positional.empty(), "at least one item has to be provided");
  return Value::object(std::make_shared<Cycler>(call.positional, call.budget));
}

Value make_joiner(Call& call) {
  const Parameters p(call, "joiner", {"sep"}, 0);
  return Value::object(
      std::make_shared<Joiner>(p.given(0) ? *p[0] : Value::text(", "), call.budget));
}

Value range(Call& call) {
  const Parameters p(call, "range", {"start", "stop", "step"}, 1);
  if (!p.given(1)) return make_range(0, p.whole(0, 0), 1, call.budget);
  return make_range(p.whole(0, 0), p.whole(1, 0), p.whole(2, 1), call.budget);
}

// Collects the members of a dict or of pairs, if one is given, and those of the keywords.
std::vector<std::pair<Value, Value>> members_of(Call& call, const char* function) {
  std::vector<std::pair<Value, Value>> members;
  MG_CHECK(call.positional.size() <= 1, "{} expected at most 1 argument, got {}", function,
           call.positional.size());
  if (!call.positional.empty() && call.positional[0].is_dict()) {
    members = call.positional[0].as_dict().members;
    call.budget.spend_items(members.size());
  } else if (!call.positional.empty()) {
    const Values pairs = elements_of(call.positional[0], call.budget);
    for (size_t i = 0; i < pairs.size(); ++i) {
      const Values pair = elements_of(pairs[i], call.budget);
      MG_CHECK(pair.size() == 2,
               "dictionary update sequence element #{} has length {}; 2 is required", i,
               pair.size());
      check_hashable(pair[0], call.budget);
      insert_member(members, pair[0], pair[1], call.budget);
    }
  }
  for (const auto& [name, value] : call.keyword)
    insert_member(members, Value::text(name, &call.budget), value, call.budget);
  return members;
}

struct DictType : Object {
  std::string type_name() const override { return "TemplateDict"; }
  std::optional<Value> attribute(std::string_view name, Budget&) const override {
    if (name != "fromkeys") return std::nullopt;
    return Value::object(std::make_shared<Function>(dict_from_keys));
  }
  bool callable() const override { return true; }
  Value call(Call& call) override { return Value::dict(members_of(call, "dict"), &call.budget); }
};

Value make_namespace(Call& call) {
  auto object = std::make_shared<Namespace>();
  call.interpreter.keep(object);
  for (auto& [key, value] : members_of(call, "namespace")) {
    MG_CHECK(key.is_text(), "a namespace's attribute must have a name, not {}", key.type_name());
    object->set(key.bytes(), value, call.budget);
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
          {"dict", Value::object(std::make_shared<DictType>())},
          {"namespace", function(make_namespace)},
          {"cycler", function(make_cycler)},
          {"joiner", function(make_joiner)},
          {"raise_exception", function(raise_exception)}};
}

Value dict_from_keys(Call& call) {
  const Parameters p(call, "fromkeys", {"iterable", "value"}, 1);
  std::vector<std::pair<Value, Value>> members;
  for (const Value& key : elements_of(*p[0], call.budget)) {
    check_hashable(key, call.budget);
    insert_member(members, key, p.given(1) ? *p[1] : Value(), call.budget);
  }
  return Value::dict(std::move(members), &call.budget);
}

}  // namespace megatron::jinja
