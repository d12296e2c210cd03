// Filters of lists, dicts and iterators.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text_parts.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/conversions.h"
#include "jinja/interpreter.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

using Keyed = std::vector<std::pair<Value, Value>>;  // sort key and element

Value list(Call& call) {
  return Value::list(elements_of(*Parameters(call, "list", {"value"}, 1)[0], call.budget),
                     &call.budget);
}

Value length(Call& call) {
  return Value::integer(length_of(*Parameters(call, "length", {"obj"}, 1)[0]));
}

Value first(Call& call) {
  const Parameters p(call, "first", {"seq"}, 1);
  if (p[0]->is_form(Sequence::Form::iterator)) {  // leaves the rest unread
    Sequence& sequence = p[0]->as_sequence();
    if (sequence.taken < sequence.elements.size()) return sequence.elements[sequence.taken++];
  } else {
    const Values elements = elements_of(*p[0], call.budget);
    if (!elements.empty()) return elements.front();
  }
  return Value::undefined("No first item, sequence was empty.");
}

Value last(Call& call) {
  const Parameters p(call, "last", {"seq"}, 1);
  MG_CHECK(!p[0]->is_form(Sequence::Form::iterator), "'generator' object is not reversible");
  const Values elements = elements_of(*p[0], call.budget);
  return elements.empty() ? Value::undefined("No last item, sequence was empty.") : elements.back();
}

Value reverse(Call& call) {
  const Parameters p(call, "reverse", {"value"}, 1);
  Values elements = elements_of(*p[0], call.budget);
  std::reverse(elements.begin(), elements.end());
  if (!p[0]->is_text()) return Value::iterator(std::move(elements), &call.budget);
  std::string text;
  for (const Value& letter : elements) text += letter.bytes();
  return Value::text(std::move(text), &call.budget);
}

Value items(Call& call) {
  const Parameters p(call, "items", {"value"}, 1);
  MG_CHECK(p[0]->is_dict() || p[0]->is_undefined(), "Can only get item pairs from a mapping.");
  return Value::iterator(p[0]->is_dict() ? pairs_of(*p[0], call.budget) : Values(), &call.budget);
}

// The part of an element that a filter uses: its attribute if parameter `i` names one, else the
// element.
Value part_of(const Value& element, const Parameters& p, size_t i, Budget& budget) {
  return p.given_and_not_none(i) ? attribute_path(element, *p[i], budget) : element;
}

Value join(Call& call) {
  const Parameters p(call, "join", {"value", "d", "attribute"}, 1);
  const std::string between = p.given(1) ? to_text(*p[1], call.budget) : "";
  std::string text;
  bool begun = false;
  for (const Value& element : elements_of(*p[0], call.budget)) {
    if (std::exchange(begun, true)) text += between;
    text += to_text(part_of(element, p, 2, call.budget), call.budget);
    call.budget.spend(1 + static_cast<int64_t>(between.size() / 32));
    call.budget.check_length(text.size());
  }
  call.budget.spend_bytes(text.size());
  return Value::text(std::move(text), &call.budget);
}

Value folded(const Value& value, bool case_sensitive, Budget& budget) {
  if (!value.is_text() || case_sensitive) return value;
  budget.spend_bytes(value.bytes().size());
  return Value::text(to_lower(value.bytes()), &budget);
}

Values sorted(Keyed keyed, bool reverse, Budget& budget) {
  const Budget::Held held(&budget, 2 * keyed.capacity() * sizeof(keyed[0]));
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? compared(Order::less, b.first, a.first, budget)
                   : compared(Order::less, a.first, b.first, budget);
  });
  Values elements;
  for (auto& [key, element] : keyed) elements.push_back(std::move(element));
  return elements;
}

// The attribute may be a list, "a,b": the second breaks ties of the first.
Value sort(Call& call) {
  const Parameters p(call, "sort", {"value", "reverse", "case_sensitive", "attribute"}, 1);
  Values paths;
  if (p.given_and_not_none(3) && p[3]->is_text()) {
    for (const std::string_view path : split_text(p.text(3), ','))
      paths.push_back(Value::text(std::string(path)));
  } else if (p.given_and_not_none(3)) {
    paths.push_back(*p[3]);
  }
  Keyed keyed;
  for (const Value& element : elements_of(*p[0], call.budget)) {
    Values keys;
    for (const Value& path : paths)
      keys.push_back(
          folded(attribute_path(element, path, call.budget), p.flag(2, false), call.budget));
    keyed.emplace_back(paths.empty() ? folded(element, p.flag(2, false), call.budget)
                                     : Value::list(keys, &call.budget),
                       element);
  }
  return Value::list(sorted(std::move(keyed), p.flag(1, false), call.budget), &call.budget);
}

Value dictsort(Call& call) {
  const Parameters p(call, "dictsort", {"value", "case_sensitive", "by", "reverse"}, 1);
  const std::string by = p.text(2, "key");
  MG_CHECK(by == "key" || by == "value", "You can only sort by either \"key\" or \"value\"");
  check_defined(*p[0]);
  MG_CHECK(p[0]->is_dict(), "'{}' object has no attribute 'items'", p[0]->type_name());
  Keyed keyed;
  for (const Value& pair : pairs_of(*p[0], call.budget)) {
    const Value& key = pair.as_sequence().elements[by == "key" ? 0 : 1];
    keyed.emplace_back(folded(key, p.flag(1, false), call.budget), pair);
  }
  return Value::list(sorted(std::move(keyed), p.flag(3, false), call.budget), &call.budget);
}

Value unique(Call& call) {
  const Parameters p(call, "unique", {"value", "case_sensitive", "attribute"}, 1);
  Values seen, kept;
  for (const Value& element : elements_of(*p[0], call.budget)) {
    const Value key = folded(part_of(element, p, 2, call.budget), p.flag(1, false), call.budget);
    check_hashable(key, call.budget);
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      return equal(other, key, call.budget);
    });
    if (known) continue;
    seen.push_back(key);
    kept.push_back(element);
  }
  return Value::iterator(std::move(kept), &call.budget);
}

template <Order better>
Value extreme(Call& call) {
  const Parameters p(call, better == Order::less ? "min" : "max",
                     {"value", "case_sensitive", "attribute"}, 1);
  Value best = Value::undefined("No aggregated item, sequence was empty."), best_key;
  for (const Value& element : elements_of(*p[0], call.budget)) {
    Value key = folded(part_of(element, p, 2, call.budget), p.flag(1, false), call.budget);
    if (!best.is_undefined() && !compared(better, key, best_key, call.budget)) continue;
    best = element;
    best_key = std::move(key);
  }
  return best;
}

Value sum(Call& call) {
  const Parameters p(call, "sum", {"iterable", "attribute", "start"}, 1);
  Value total = p.given(2) ? *p[2] : Value::integer(0);
  MG_CHECK(!total.is_text(), "sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& element : elements_of(*p[0], call.budget))
    total = calculate(Operator::add, total, part_of(element, p, 1, call.budget), call.budget);
  return total;
}

Value batch(Call& call) {
  const Parameters p(call, "batch", {"value", "linecount", "fill_with"}, 2);
  const auto size = static_cast<size_t>(std::max<int64_t>(p.whole(1, 1), 1));
  Values rows, row;
  for (Value& element : elements_of(*p[0], call.budget)) {
    row.push_back(std::move(element));
    if (row.size() == size) rows.push_back(Value::list(std::exchange(row, {}), &call.budget));
  }
  if (!row.empty()) {
    if (p.given_and_not_none(2)) {
      call.budget.spend(static_cast<int64_t>(size));
      call.budget.check_memory(size * sizeof(Value));
      row.resize(size, *p[2]);
    }
    rows.push_back(Value::list(std::move(row), &call.budget));
  }
  return Value::iterator(std::move(rows), &call.budget);
}

Value slice(Call& call) {
  const Parameters p(call, "slice", {"value", "slices", "fill_with"}, 2);
  const Values elements = elements_of(*p[0], call.budget);
  const int64_t slices = p.whole(1, 1);
  MG_CHECK(slices != 0, "integer division or modulo by zero");
  Values rows;
  auto next = elements.begin();
  for (int64_t i = 0; i < slices; ++i) {
    const bool longer = i < std::ssize(elements) % slices;
    const auto end = next + std::ssize(elements) / slices + (longer ? 1 : 0);
    Values row(next, end);
    if (!longer && p.given_and_not_none(2)) row.push_back(*p[2]);
    next = end;
    call.budget.spend(1);
    rows.push_back(Value::list(std::move(row), &call.budget));
  }
  return Value::iterator(std::move(rows), &call.budget);
}

// Groups elements by an attribute. Returns pairs of a value and the list of its elements, ordered
// by value.
Value groupby(Call& call) {
  const Parameters p(call, "groupby", {"value", "attribute", "default", "case_sensitive"}, 2);
  const auto key_of = [&](const Value& element) {
    Value key = attribute_path(element, *p[1], call.budget);
    return key.is_undefined() && p.given_and_not_none(2) ? *p[2] : key;
  };
  Keyed keyed;
  for (const Value& element : elements_of(*p[0], call.budget))
    keyed.emplace_back(folded(key_of(element), p.flag(3, false), call.budget), element);
  Values groups, members;
  Value key;
  const auto close = [&] {
    if (members.empty()) return;
    const Value first = key_of(members[0]);
    Value all = Value::list(std::exchange(members, {}), &call.budget);
    groups.push_back(Value::sequence(Sequence::Form::group, {first, std::move(all)}, &call.budget));
  };
  for (const Value& element : sorted(std::move(keyed), false, call.budget)) {
    Value next = folded(key_of(element), p.flag(3, false), call.budget);
    if (!members.empty() && !equal(next, key, call.budget)) close();
    key = std::move(next);
    members.push_back(element);
  }
  close();
  return Value::list(std::move(groups), &call.budget);
}

Value attr(Call& call) {
  const Parameters p(call, "attr", {"obj", "name"}, 2);
  const std::string name = to_text(*p[1], call.budget);
  check_defined(*p[0]);
  // Unlike obj.name, this never returns the value of a dict's key.
  if (p[0]->is_object() || member_of(*p[0], name, call.budget))
    return attribute_of(*p[0], name, call.budget);
  return attribute_of(p[0]->is_dict() ? Value::dict({}, &call.budget) : *p[0], name, call.budget);
}

// The arguments of a filter or test that runs on `element`: those of `call` from `rest` on.
Values forwarded(Call& call, Value element, size_t rest) {
  Values arguments{std::move(element)};
  arguments.insert(arguments.end(), call.positional.begin() + static_cast<std::ptrdiff_t>(rest),
                   call.positional.end());
  call.budget.spend(1 + static_cast<int64_t>(arguments.size()));
  return arguments;
}

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
  return Value::iterator(std::move(mapped), &call.budget);
}

Value map(Call& call) {
  const Value source = call.positional.at(0);
  if (call.positional.size() == 1) return map_attribute(call, source);
  MG_CHECK(call.positional[1].is_text(), "map requires a filter argument");
  const std::string name = call.positional[1].bytes();
  Values mapped;
  for (Value& element : elements_of(source, call.budget)) {
    mapped.push_back(
        call.interpreter.filter(name, forwarded(call, std::move(element), 2), call.keyword));
  }
  return Value::iterator(std::move(mapped), &call.budget);
}

template <bool wanted, bool by_attribute>
Value select(Call& call) {
  const size_t first = by_attribute ? 2 : 1;  // index of the test's name
  MG_CHECK(call.positional.size() >= first, "Missing parameter for attribute name");
  const bool tests = call.positional.size() > first;
  MG_CHECK(!tests || call.positional[first].is_text(), "the name of a test must be a string");
  Values kept;
  for (Value& element : elements_of(call.positional[0], call.budget)) {
    Value part = by_attribute ? attribute_path(element, call.positional[1], call.budget) : element;
    const bool holds =
        tests ? call.interpreter.test(call.positional[first].bytes(),
                                      forwarded(call, std::move(part), first + 1), call.keyword)
              : part.truth();
    if (holds == wanted) kept.push_back(std::move(element));
  }
  return Value::iterator(std::move(kept), &call.budget);
}

constexpr std::array kSequenceFilters = {
    NamedNative{"attr", attr},
    NamedNative{"batch", batch},
    NamedNative{"count", length},
    NamedNative{"dictsort", dictsort},
    NamedNative{"first", first},
    NamedNative{"groupby", groupby},
    NamedNative{"items", items},
    NamedNative{"join", join},
    NamedNative{"last", last},
    NamedNative{"length", length},
    NamedNative{"list", list},
    NamedNative{"map", map},
    NamedNative{"max", extreme<Order::greater>},
    NamedNative{"min", extreme<Order::less>},
    NamedNative{"reject", select<false, false>},
    NamedNative{"rejectattr", select<false, true>},
    NamedNative{"reverse", reverse},
    NamedNative{"select", select<true, false>},
    NamedNative{"selectattr", select<true, true>},
    NamedNative{"slice", slice},
    NamedNative{"sort", sort},
    NamedNative{"sum", sum},
    NamedNative{"unique", unique},
};

}  // namespace

Value attribute_path(const Value& value, const Value& path, Budget& budget) {
  if (!path.is_text()) return element_of(value, path, budget);
  Value current = value;
  for (const std::string_view name : split_text(path.bytes(), '.')) {
    const std::string part(name);
    const bool digits = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    current =
        element_of(current, digits ? Value::integer(std::stoll(part)) : Value::text(part), budget);
  }
  return current;
}

Values pairs_of(const Value& dict, Budget& budget) {
  Values pairs;
  budget.spend(static_cast<int64_t>(dict.as_dict().members.size()));
  for (const auto& [key, value] : dict.as_dict().members)
    pairs.push_back(Value::tuple({key, value}, &budget));
  return pairs;
}

std::span<const NamedNative> sequence_filters() { return kSequenceFilters; }

}  // namespace megatron::jinja
