// Attributes, elements, slices, ranges and iteration.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "jinja/builtins.h"
#include "jinja/conversions.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

// Description of the value without the attribute, as in jinja2's undefined values.
std::string owner(const Value& value) {
  if (value.is_none()) return "None";
  return value.type_name() + " object";
}

Value no_attribute(const Value& value, std::string_view name) {
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", owner(value), name));
}

// Resolves an index, which counts from the end if it is negative; nullopt if it is out of range.
std::optional<size_t> index_in(int64_t index, size_t size) {
  const auto count = static_cast<int64_t>(size);
  if (index < -count || index >= count) return std::nullopt;
  return static_cast<size_t>(index < 0 ? index + count : index);
}

bool has_elements_by_index(const Value& value) {
  return value.is_list_or_tuple() || value.is_form(Sequence::Form::range);
}

std::optional<Value> subscript(const Value& value, const Value& key, Budget& budget) {
  if (value.is_dict()) {
    if (key.is_text()) {
      const Value* found = value.as_dict().find(key.bytes());
      budget.spend_items(value.as_dict().members.size());
      return found != nullptr ? std::optional(*found) : std::nullopt;
    }
    for (const auto& [name, member] : value.as_dict().members)
      if (equal(name, key, budget)) return member;
    return std::nullopt;
  }
  if (!key.is_whole() || key.is_big()) return std::nullopt;
  if (value.is_text()) {
    const Text& text = value.as_text();
    const auto at = index_in(key.as_whole(), static_cast<size_t>(text.length));
    if (!at) return std::nullopt;
    if (text.ascii()) return Value::text(text.bytes.substr(*at, 1), &budget);
    budget.spend_bytes(text.bytes.size());
    const auto index = static_cast<int64_t>(*at);
    return Value::text(std::string(substring(text.bytes, index, index + 1)), &budget);
  }
  if (!has_elements_by_index(value)) return std::nullopt;
  const Values& elements = value.as_sequence().elements;
  const auto at = index_in(key.as_whole(), elements.size());
  return at ? std::optional(elements[*at]) : std::nullopt;
}

struct Bounds {
  int64_t begin, end, step;
};

int64_t slice_part(const Value& part, int64_t initial) {
  if (part.is_none()) return initial;
  MG_CHECK(part.is_whole(),
           "slice indices must be integers or None or have an __index__ method, not {}",
           part.type_name());
  if (!part.is_big()) return part.as_whole();
  return part.as_big().is_negative() ? std::numeric_limits<int64_t>::min()
                                     : std::numeric_limits<int64_t>::max();
}

Bounds bounds_of(const Value& begin, const Value& end, const Value& step, int64_t length) {
  Bounds bounds{};
  bounds.step = slice_part(step, 1);
  MG_CHECK(bounds.step != 0, "slice step cannot be zero");
  const bool forward = bounds.step > 0;
  const int64_t low = forward ? 0 : -1, high = forward ? length : length - 1;
  const auto place = [&](const Value& part, int64_t initial) {
    if (part.is_none()) return initial;
    const int64_t index = slice_part(part, 0);
    return std::clamp(index < 0 ? std::max(index, -length - 1) + length : index, low, high);
  };
  bounds.begin = place(begin, forward ? low : high);
  bounds.end = place(end, forward ? high : low);
  // A longer step takes the first element only.
  bounds.step = std::clamp(bounds.step, -length - 1, length + 1);
  return bounds;
}

Value range_of(Values elements, std::array<int64_t, 3> range, Budget& budget) {
  Value value = Value::sequence(Sequence::Form::range, std::move(elements), &budget);
  value.as_sequence().range = range;
  return value;
}

}  // namespace

Value attribute_of(const Value& value, std::string_view name, Budget& budget) {
  check_defined(value);
  if (value.is_object()) {
    if (auto found = value.as_object()->attribute(name, budget)) return *found;
    return no_attribute(value, name);
  }
  if (auto member = member_of(value, name, budget)) return *member;
  if (value.is_dict()) {
    budget.spend_items(value.as_dict().members.size());
    const Value* found = value.as_dict().find(name);
    if (found != nullptr && !is_mutating(value, name)) return *found;
  }
  if (is_mutating(value, name) || (name.starts_with("__") && name.ends_with("__")))
    return Value::undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, value.type_name()));
  return no_attribute(value, name);
}

Value element_of(const Value& value, const Value& key, Budget& budget) {
  check_defined(value);
  if (auto found = subscript(value, key, budget)) return *found;
  if (key.is_text()) return attribute_of(value, key.bytes(), budget);
  return Value::undefined(fmt::format("{} has no element {}", owner(value), repr(key, budget)));
}

Value slice_of(const Value& value, const Value& begin, const Value& end, const Value& step,
               Budget& budget) {
  check_defined(value);
  if (!value.is_text() && !has_elements_by_index(value))
    return Value::undefined(fmt::format("{} has no element slice", owner(value)));
  const int64_t length = length_of(value);
  const Bounds bounds = bounds_of(begin, end, step, length);
  const bool plain = bounds.step == 1;
  if (value.is_text() && plain) {
    const Text& text = value.as_text();
    budget.spend_bytes(text.bytes.size());
    return Value::text(std::string(substring(text.bytes, bounds.begin, bounds.end)), &budget);
  }
  std::vector<char32_t> letters;
  budget.spend_items(static_cast<size_t>(length));
  budget.check_memory(static_cast<size_t>(length) *
                      (value.is_text() ? sizeof(char32_t) : sizeof(Value)));
  if (value.is_text()) letters = code_points(value.bytes());
  Values elements;
  std::string text;
  for (int64_t i = bounds.begin; bounds.step > 0 ? i < bounds.end : i > bounds.end;
       i += bounds.step) {
    const auto at = static_cast<size_t>(i);
    if (value.is_text()) append_character(letters[at], text);
    if (!value.is_text()) elements.push_back(value.as_sequence().elements[at]);
  }
  if (value.is_text()) return Value::text(std::move(text), &budget);
  if (value.is_tuple()) return Value::tuple(std::move(elements), &budget);
  if (!value.is_form(Sequence::Form::range)) return Value::list(std::move(elements), &budget);
  const auto& [first, last, stride] = value.as_sequence().range;
  return range_of(
      std::move(elements),
      {first + bounds.begin * stride, first + bounds.end * stride, stride * bounds.step}, budget);
}

Value make_range(int64_t begin, int64_t end, int64_t step, Budget& budget) {
  constexpr uint64_t kMax = 100000;
  MG_CHECK(step != 0, "range() arg 3 must not be zero");
  const bool any = step > 0 ? begin < end : begin > end;
  const auto distance = step > 0 ? static_cast<uint64_t>(end) - static_cast<uint64_t>(begin)
                                 : static_cast<uint64_t>(begin) - static_cast<uint64_t>(end);
  const uint64_t stride =
      step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  const uint64_t count = any ? (distance - 1) / stride + 1 : 0;
  MG_CHECK(count <= kMax, "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).",
           kMax);
  budget.spend_items(count);
  Values elements;
  for (uint64_t i = 0; i < count; ++i)
    elements.push_back(Value::integer(begin + static_cast<int64_t>(i) * step));
  return range_of(std::move(elements), {begin, end, step}, budget);
}

Values elements_of(const Value& value, Budget& budget) {
  if (value.is_undefined()) return {};
  Values elements;
  if (value.is_text()) {
    budget.spend(value.as_text().length);
    for (size_t at = 0; at < value.bytes().size();) {
      std::string letter;
      append_character(next_character(value.bytes(), at), letter);
      elements.push_back(Value::text(std::move(letter), &budget));
    }
    return elements;
  }
  if (value.is_dict()) {
    budget.spend_items(value.as_dict().members.size());
    for (const auto& [key, member] : value.as_dict().members) elements.push_back(key);
    return elements;
  }
  MG_CHECK(value.is_sequence(), "'{}' object is not iterable", value.type_name());
  Sequence& sequence = value.as_sequence();
  budget.spend_items(sequence.elements.size());
  budget.check_memory(sequence.elements.size() * sizeof(Value));
  const auto first = sequence.elements.begin() + static_cast<std::ptrdiff_t>(sequence.taken);
  elements.assign(first, sequence.elements.end());
  if (sequence.form == Sequence::Form::iterator) sequence.taken = sequence.elements.size();
  return elements;
}

int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_text()) return value.as_text().length;
  if (value.is_dict()) return static_cast<int64_t>(value.as_dict().members.size());
  if (value.is_object()) {
    if (const auto* loop = dynamic_cast<const Loop*>(value.as_object().get()))
      return static_cast<int64_t>(loop->elements.size());
  }
  MG_CHECK(value.is_sequence() && !value.is_form(Sequence::Form::iterator),
           "object of type '{}' has no len()", value.type_name());
  return static_cast<int64_t>(value.as_sequence().elements.size());
}

}  // namespace megatron::jinja
