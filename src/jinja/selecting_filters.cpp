// map, select, reject, selectattr and rejectattr: filters that run others.
#include <array>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/filters.h"
#include "jinja/interpreter.h"
#include "jinja/operators.h"

namespace megatron::jinja {
namespace {

Value map_attribute(Call& call, const Value& source) {
  const Value* path = nullptr;
  const Value* initial = nullptr;
  for (const auto& [name, value] : call.keyword) {
    MG_CHECK(name == "attribute" || name == "default", "Unexpected keyword argument '{}'", name);
    (name == "attribute" ? path : initial) = &value;
  }
  MG_CHECK(path != nullptr, "map requires a filter argument");
  Values mapped;
  for (const Value& element : elements_of(source, call.budget)) {
    Value value = attribute_path(element, *path, call.budget);
    mapped.push_back(value.is_undefined() && initial != nullptr ? *initial : std::move(value));
  }
  return Value::iterator(std::move(mapped), "<generator object sync_do_map>");
}

Value map(Call& call) {
  const Value source = call.positional.at(0);
  if (call.positional.size() == 1) return map_attribute(call, source);
  MG_CHECK(call.positional[1].is_text(), "map requires a filter argument");
  const std::string name = call.positional[1].bytes();
  Values mapped;
  for (Value& element : elements_of(source, call.budget)) {
    Values arguments{std::move(element)};
    arguments.insert(arguments.end(), call.positional.begin() + 2, call.positional.end());
    call.budget.spend(1 + static_cast<int64_t>(arguments.size()));
    mapped.push_back(call.interpreter.filter(name, std::move(arguments), call.keyword));
  }
  return Value::iterator(std::move(mapped), "<generator object sync_do_map>");
}

template <bool wanted, bool by_attribute>
Value select(Call& call) {
  const size_t first = by_attribute ? 2 : 1;  // where the test's name stands
  MG_CHECK(call.positional.size() >= first, "Missing parameter for attribute name");
  Values kept;
  for (Value& element : elements_of(call.positional[0], call.budget)) {
    const Value part =
        by_attribute ? attribute_path(element, call.positional[1], call.budget) : element;
    bool holds = false;
    if (call.positional.size() > first) {
      MG_CHECK(call.positional[first].is_text(), "the name of a test must be a text, not {}",
               call.positional[first].type_name());
      const auto rest = call.positional.begin() + static_cast<std::ptrdiff_t>(first) + 1;
      Values arguments{part};
      arguments.insert(arguments.end(), rest, call.positional.end());
      call.budget.spend(1 + static_cast<int64_t>(arguments.size()));
      holds =
          call.interpreter.test(call.positional[first].bytes(), std::move(arguments), call.keyword);
    } else {
      holds = part.truth();
    }
    if (holds == wanted) kept.push_back(std::move(element));
  }
  return Value::iterator(std::move(kept), "<generator object select_or_reject>");
}

constexpr std::array kFilters = {
    NamedNative{"map", map},
    NamedNative{"select", select<true, false>},
    NamedNative{"reject", select<false, false>},
    NamedNative{"selectattr", select<true, true>},
    NamedNative{"rejectattr", select<false, true>},
};

}  // namespace

std::span<const NamedNative> selecting_filters() { return kFilters; }

}  // namespace megatron::jinja
