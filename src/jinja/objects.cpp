#include "jinja/objects.h"

#include <algorithm>

#include "base/error.h"
#include "jinja/error.h"
#include "jinja/interpreter.h"
#include "jinja/operators.h"

namespace megatron::jinja {

std::optional<Value> Namespace::inner() const {
  std::vector<std::pair<Value, Value>> shown;
  for (const auto& [name, value] : members) shown.emplace_back(Value::text(name), value);
  return Value::dict(std::move(shown));
}

std::optional<Value> Namespace::attribute(std::string_view name) const {
  for (const auto& [key, value] : members)
    if (key == name) return value;
  return std::nullopt;
}

void Namespace::set(const std::string& name, Value value) {
  MG_CHECK(name.substr(0, 1) != "_",
           "Chat templates cannot store underscore-prefixed attributes on a namespace, but got "
           "'{}'. Please rename the attribute.",
           name);
  for (auto& [key, old] : members) {
    if (key != name) continue;
    old = std::move(value);
    return;
  }
  members.emplace_back(name, std::move(value));
}

std::optional<Value> Macro::attribute(std::string_view name) const {
  if (name == "name") return Value::text(statement->text);
  if (name == "catch_kwargs") return Value::boolean(statement->reads_kwargs);
  if (name == "catch_varargs") return Value::boolean(statement->reads_varargs);
  if (name == "caller") return Value::boolean(statement->reads_caller);
  if (name != "arguments") return std::nullopt;
  Values names;
  for (const Parameter& parameter : statement->parameters)
    names.push_back(Value::text(parameter.name));
  return Value::tuple(std::move(names));
}

Value Macro::call(Call& call) { return call.interpreter.call_macro(*this, call); }

namespace {

struct LoopMethod : Object {
  LoopMethod(std::shared_ptr<Loop> owner, bool cycles) : loop(std::move(owner)), cycle(cycles) {
    depth = loop->depth + 1;
  }
  std::string type_name() const override { return "method"; }
  bool callable() const override { return true; }
  Value call(Call& call) override;

  std::shared_ptr<Loop> loop;
  bool cycle;
};

Value LoopMethod::call(Call& call) {
  if (cycle) {
    MG_CHECK(!call.positional.empty(), "no items for cycling given");
    return call.positional[static_cast<size_t>(loop->index) % call.positional.size()];
  }
  const Value seen = Value::tuple(call.positional);
  const bool same = loop->last_seen && equal(Value::tuple(*loop->last_seen), seen, call.budget);
  loop->last_seen = call.positional;
  return Value::boolean(!same);
}

}  // namespace

Loop::Loop(Values loop_elements, int nesting) : elements(std::move(loop_elements)), level(nesting) {
  for (const Value& element : elements) depth = std::max(depth, element.depth());
  ++depth;
}

std::string Loop::shown() const {
  return fmt::format("<LoopContext {}/{}>", index + 1, elements.size());
}

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
  if (name == "depth") return Value::integer(level + 1);
  if (name == "depth0") return Value::integer(level);
  if (name == "previtem")
    return index > 0 ? elements[at - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < length ? elements[at + 1] : Value::undefined("there is no next item");
  if (name != "cycle" && name != "changed") return std::nullopt;
  auto self = std::const_pointer_cast<Loop>(shared_from_this());
  return Value::object(std::make_shared<LoopMethod>(std::move(self), name == "cycle"));
}

Value Loop::call(Call& call) {
  MG_CHECK(recursive != nullptr,
           "The loop must have the 'recursive' marker to be called recursively.");
  const Parameters p(call, "loop", {"iterable"}, 1);
  return Value::text(
      call.interpreter.run_loop(*recursive, elements_of(*p[0], call.budget), level + 1, scope));
}

namespace {

Value range(Call& call) {
  const Parameters p(call, "range", {"start", "stop", "step"}, 1);
  if (!p.given(1)) return make_range(0, p.whole(0, 0), 1, call.budget);
  return make_range(p.whole(0, 0), p.whole(1, 0), p.whole(2, 1), call.budget);
}

std::vector<std::pair<Value, Value>> members_of(Call& call, const char* function) {
  MG_CHECK(call.positional.size() <= 1, "{} expected at most 1 argument, got {}", function,
           call.positional.size());
  std::vector<std::pair<Value, Value>> members;
  if (!call.positional.empty() && call.positional[0].is_dict()) {
    members = call.positional[0].as_dict().members;
  } else if (!call.positional.empty()) {
    for (const Value& pair : elements_of(call.positional[0], call.budget)) {
      const Values both = elements_of(pair, call.budget);
      MG_CHECK(both.size() == 2, "{}: an element has length {}; 2 is required", function,
               both.size());
      check_hashable(both[0]);
      insert_member(members, both[0], both[1], call.budget);
    }
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
  throw Raised(p[0]->is_text() ? p[0]->bytes() : "raise_exception was called without a text");
}

// Its separator at each call but the first.
struct Joiner : Object {
  std::string type_name() const override { return "jinja2.utils.Joiner"; }
  bool callable() const override { return true; }
  Value call(Call&) override { return std::exchange(used, true) ? separator : Value::text(""); }

  Value separator;
  bool used = false;
};

Value joiner(Call& call) {
  const Parameters p(call, "joiner", {"sep"}, 0);
  auto object = std::make_shared<Joiner>();
  object->separator = p.given(0) ? *p[0] : Value::text(", ");
  object->depth = object->separator.depth() + 1;
  return Value::object(std::move(object));
}

struct Cycler : Object, std::enable_shared_from_this<Cycler> {
  std::string type_name() const override { return "jinja2.utils.Cycler"; }
  std::optional<Value> attribute(std::string_view name) const override;

  Values items;
  size_t at = 0;
};

struct CyclerMethod : Object {
  CyclerMethod(std::shared_ptr<Cycler> owner, bool advances)
      : cycler(std::move(owner)), advance(advances) {
    depth = cycler->depth + 1;
  }
  std::string type_name() const override { return "method"; }
  bool callable() const override { return true; }
  Value call(Call&) override {
    const Value current = advance ? cycler->items[cycler->at] : Value();
    cycler->at = advance ? (cycler->at + 1) % cycler->items.size() : 0;
    return current;
  }

  std::shared_ptr<Cycler> cycler;
  bool advance;
};

std::optional<Value> Cycler::attribute(std::string_view name) const {
  if (name == "current") return items[at];
  if (name != "next" && name != "reset") return std::nullopt;
  auto self = std::const_pointer_cast<Cycler>(shared_from_this());
  return Value::object(std::make_shared<CyclerMethod>(std::move(self), name == "next"));
}

Value cycler(Call& call) {
  MG_CHECK(!call.positional.empty(), "at least one item has to be provided");
  auto object = std::make_shared<Cycler>();
  object->items = call.positional;
  for (const Value& item : object->items) object->depth = std::max(object->depth, item.depth() + 1);
  return Value::object(std::move(object));
}

}  // namespace

std::vector<std::pair<std::string, Value>> standard_functions() {
  std::vector<std::pair<std::string, Value>> functions;
  const auto add = [&](const char* name, Native native) {
    functions.emplace_back(name, Value::object(std::make_shared<Function>(name, native)));
  };
  add("range", range);
  add("dict", make_dict);
  add("namespace", make_namespace);
  add("raise_exception", raise_exception);
  add("joiner", joiner);
  add("cycler", cycler);
  return functions;
}

}  // namespace megatron::jinja
