#include <algorithm>
#include <array>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/conversions.h"
#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

Value list(Call& call) {
  return Value::list(elements_of(*Parameters(call, "list", {"value"}, 1)[0], call.budget));
}

Value length(Call& call) {
  return Value::integer(length_of(*Parameters(call, "length", {"obj"}, 1)[0]));
}

Value first(Call& call) {
  const Parameters p(call, "first", {"seq"}, 1);
  if (p[0]->is_form(Sequence::Form::iterator)) {  // the rest stays to be read
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
  if (p[0]->is_form(Sequence::Form::iterator)) return Value::list(std::move(elements));
  if (!p[0]->is_text())
    return Value::iterator(std::move(elements),
                           "<" + p[0]->type_name() + "_reverseiterator object>");
  std::string text;
  for (const Value& letter : elements) text += letter.bytes();
  return Value::text(std::move(text));
}

Value items(Call& call) {
  const Parameters p(call, "items", {"value"}, 1);
  MG_CHECK(p[0]->is_dict() || p[0]->is_undefined(), "Can only get item pairs from a mapping.");
  Values pairs;
  if (p[0]->is_dict()) {
    for (const auto& [key, value] : p[0]->as_dict().members)
      pairs.push_back(Value::tuple({key, value}));
  }
  call.budget.spend(static_cast<int64_t>(pairs.size()));
  return Value::iterator(std::move(pairs), "<generator object do_items>");
}

Value join(Call& call) {
  const Parameters p(call, "join", {"value", "d", "attribute"}, 1);
  const std::string between = p.given(1) ? to_text(*p[1], call.budget) : "";
  std::string text;
  bool begun = false;
  for (const Value& element : elements_of(*p[0], call.budget)) {
    if (begun) text += between;
    begun = true;
    text += to_text(p.given_and_not_none(2) ? attribute_path(element, *p[2], call.budget) : element,
                    call.budget);
    call.budget.spend(1 + static_cast<int64_t>(between.size() / 32));
    call.budget.check_length(text.size());
  }
  call.budget.spend_bytes(text.size());
  return Value::text(std::move(text));
}

Value folded(const Value& value, bool case_sensitive) {
  return value.is_text() && !case_sensitive ? Value::text(to_lower(value.bytes())) : value;
}

void sort_pairs(std::vector<std::pair<Value, Value>>& keyed, bool reverse, Budget& budget) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first, budget) : less(a.first, b.first, budget);
  });
}

Value sort(Call& call) {
  const Parameters p(call, "sort", {"value", "reverse", "case_sensitive", "attribute"}, 1);
  std::vector<Value> paths;
  if (p.given_and_not_none(3) && p[3]->is_text()) {
    const std::string& all = p.text(3);
    for (size_t at = 0; at <= all.size();) {
      const size_t end = std::min(all.find(',', at), all.size());
      paths.push_back(Value::text(all.substr(at, end - at)));
      at = end + 1;
    }
  } else if (p.given_and_not_none(3)) {
    paths.push_back(*p[3]);
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& element : elements_of(*p[0], call.budget)) {
    Values keys;
    for (const Value& path : paths)
      keys.push_back(folded(attribute_path(element, path, call.budget), p.flag(2, false)));
    keyed.emplace_back(paths.empty() ? folded(element, p.flag(2, false)) : Value::list(keys),
                       element);
  }
  sort_pairs(keyed, p.flag(1, false), call.budget);
  Values sorted;
  for (auto& [key, element] : keyed) sorted.push_back(std::move(element));
  return Value::list(std::move(sorted));
}

Value dictsort(Call& call) {
  const Parameters p(call, "dictsort", {"value", "case_sensitive", "by", "reverse"}, 1);
  const std::string by = p.text(2, "key");
  MG_CHECK(by == "key" || by == "value", "You can only sort by either \"key\" or \"value\"");
  check_defined(*p[0]);
  MG_CHECK(p[0]->is_dict(), "'{}' object has no attribute 'items'", p[0]->type_name());
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : p[0]->as_dict().members)
    keyed.emplace_back(folded(by == "key" ? key : value, p.flag(1, false)),
                       Value::tuple({key, value}));
  sort_pairs(keyed, p.flag(3, false), call.budget);
  Values sorted;
  for (auto& [key, pair] : keyed) sorted.push_back(std::move(pair));
  return Value::list(std::move(sorted));
}

Value unique(Call& call) {
  const Parameters p(call, "unique", {"value", "case_sensitive", "attribute"}, 1);
  Values seen, kept;
  for (const Value& element : elements_of(*p[0], call.budget)) {
    const Value part =
        p.given_and_not_none(2) ? attribute_path(element, *p[2], call.budget) : element;
    const Value key = folded(part, p.flag(1, false));
    check_hashable(key);
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      return equal(other, key, call.budget);
    });
    if (known) continue;
    seen.push_back(key);
    kept.push_back(element);
  }
  return Value::iterator(std::move(kept), "<generator object do_unique>");
}

template <bool largest>
Value extreme(Call& call) {
  const Parameters p(call, largest ? "max" : "min", {"value", "case_sensitive", "attribute"}, 1);
  const Values elements = elements_of(*p[0], call.budget);
  if (elements.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& element) {
    const Value part =
        p.given_and_not_none(2) ? attribute_path(element, *p[2], call.budget) : element;
    return folded(part, p.flag(1, false));
  };
  const Value* best = &elements[0];
  Value best_key = key_of(elements[0]);
  for (size_t i = 1; i < elements.size(); ++i) {
    Value key = key_of(elements[i]);
    if (!ordered(largest ? ">" : "<", key, best_key, call.budget)) continue;
    best = &elements[i];
    best_key = std::move(key);
  }
  return *best;
}

Value sum(Call& call) {
  const Parameters p(call, "sum", {"iterable", "attribute", "start"}, 1);
  Value total = p.given(2) ? *p[2] : Value::integer(0);
  MG_CHECK(!total.is_text(), "sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& element : elements_of(*p[0], call.budget)) {
    const Value part =
        p.given_and_not_none(1) ? attribute_path(element, *p[1], call.budget) : element;
    total = calculate(Operator::add, total, part, call.budget);
  }
  return total;
}

Value batch(Call& call) {
  const Parameters p(call, "batch", {"value", "linecount", "fill_with"}, 2);
  const auto size = static_cast<size_t>(std::clamp<int64_t>(p.whole(1, 1), 1, 1 << 24));
  Values rows, row;
  for (Value& element : elements_of(*p[0], call.budget)) {
    row.push_back(std::move(element));
    if (row.size() == size) rows.push_back(Value::list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    if (p.given_and_not_none(2)) {
      call.budget.spend(static_cast<int64_t>(size));
      row.resize(size, *p[2]);
    }
    rows.push_back(Value::list(std::move(row)));
  }
  return Value::iterator(std::move(rows), "<generator object do_batch>");
}

Value slice(Call& call) {
  const Parameters p(call, "slice", {"value", "slices", "fill_with"}, 2);
  const Values elements = elements_of(*p[0], call.budget);
  const int64_t count = p.whole(1, 1);
  MG_CHECK(count > 0 && count <= 1 << 20, "slice: {} columns must lie in [1, {}]", count, 1 << 20);
  call.budget.spend(count);
  const auto columns = static_cast<size_t>(count);
  const size_t each = elements.size() / columns, longer = elements.size() % columns;
  Values result;
  size_t at = 0;
  for (size_t i = 0; i < columns; ++i) {
    const size_t size = each + (i < longer ? 1 : 0);
    const auto begin = elements.begin() + static_cast<std::ptrdiff_t>(at);
    Values column(begin, begin + static_cast<std::ptrdiff_t>(size));
    at += size;
    if (p.given_and_not_none(2) && i >= longer) column.push_back(*p[2]);
    result.push_back(Value::list(std::move(column)));
  }
  return Value::iterator(std::move(result), "<generator object sync_do_slice>");
}

Value groupby(Call& call) {
  const Parameters p(call, "groupby", {"value", "attribute", "default", "case_sensitive"}, 2);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& element : elements_of(*p[0], call.budget)) {
    Value key = attribute_path(element, *p[1], call.budget);
    if (key.is_undefined() && p.given_and_not_none(2)) key = *p[2];
    keyed.emplace_back(folded(key, p.flag(3, false)), element);
  }
  sort_pairs(keyed, false, call.budget);
  Values groups;
  for (size_t at = 0; at < keyed.size();) {
    Values members;
    const size_t begin = at;
    while (at < keyed.size() && equal(keyed[at].first, keyed[begin].first, call.budget))
      members.push_back(keyed[at++].second);
    Value name = attribute_path(members[0], *p[1], call.budget);
    if (name.is_undefined() && p.given_and_not_none(2)) name = *p[2];
    Value group = Value::tuple({std::move(name), Value::list(std::move(members))});
    group.as_sequence().group = true;
    groups.push_back(std::move(group));
  }
  return Value::list(std::move(groups));
}

constexpr std::array kFilters = {
    NamedNative{"list", list},         NamedNative{"length", length},
    NamedNative{"count", length},      NamedNative{"first", first},
    NamedNative{"last", last},         NamedNative{"reverse", reverse},
    NamedNative{"items", items},       NamedNative{"join", join},
    NamedNative{"sort", sort},         NamedNative{"dictsort", dictsort},
    NamedNative{"unique", unique},     NamedNative{"min", extreme<false>},
    NamedNative{"max", extreme<true>}, NamedNative{"sum", sum},
    NamedNative{"batch", batch},       NamedNative{"slice", slice},
    NamedNative{"groupby", groupby},
};

}  // namespace

Value attribute_path(const Value& value, const Value& path, Budget& budget) {
  if (!path.is_text()) return element_of(value, path, budget);
  Value current = value;
  const std::string_view all = path.bytes();
  for (size_t at = 0; at <= all.size();) {
    const size_t end = std::min(all.find('.', at), all.size());
    const std::string part(all.substr(at, end - at));
    const bool digits = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    current =
        element_of(current, digits ? Value::integer(std::stoll(part)) : Value::text(part), budget);
    at = end + 1;
  }
  return current;
}

std::span<const NamedNative> sequence_filters() { return kFilters; }

}  // namespace megatron::jinja
