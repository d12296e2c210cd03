// Methods and other attributes of lists, tuples, dicts, ranges and numbers. Those of texts are also
// looked up here.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/conversions.h"
#include "jinja/formatting.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

// ---- dicts

Value get(Call& call) {
  const Parameters p(call, "get", {"self", "key", "default"}, 2);
  check_hashable(*p[1], call.budget);
  call.budget.spend_items(p[0]->as_dict().members.size());
  for (const auto& [key, value] : p[0]->as_dict().members)
    if (equal(key, *p[1], call.budget)) return value;
  return p.given(2) ? *p[2] : Value();
}

enum class Part { keys, values, items };

template <Part part>
Value view(Call& call) {
  const char* name = part == Part::keys ? "keys" : part == Part::values ? "values" : "items";
  const Parameters p(call, name, {"self"}, 1);
  Values elements;
  call.budget.spend(static_cast<int64_t>(p[0]->as_dict().members.size()));
  for (const auto& [key, value] : p[0]->as_dict().members) {
    elements.push_back(part == Part::keys     ? key
                       : part == Part::values ? value
                                              : Value::tuple({key, value}, &call.budget));
  }
  return Value::sequence(Sequence::Form::view, std::move(elements), &call.budget,
                         std::string("dict_") + name);
}

Value copy(Call& call) {  // dicts are immutable, so a value serves as its own copy
  const Parameters p(call, "copy", {"self"}, 1);
  return *p[0];
}

Value from_keys(Call& call) {
  call.positional.erase(call.positional.begin());
  return dict_from_keys(call);
}

// ---- sequences

Value count(Call& call) {
  const Parameters p(call, "count", {"self", "value"}, 2);
  int64_t found = 0;
  for (const Value& element : p[0]->as_sequence().elements)
    if (equal(element, *p[1], call.budget)) ++found;
  return Value::integer(found);
}

Value index(Call& call) {
  const Parameters p(call, "index", {"self", "value", "start", "stop"}, 2);
  const Values& elements = p[0]->as_sequence().elements;
  const auto place = [&](size_t i, int64_t initial) {
    const int64_t at = p.whole(i, initial);
    return std::clamp<int64_t>(at < 0 ? at + std::ssize(elements) : at, 0, std::ssize(elements));
  };
  const auto end = static_cast<size_t>(place(3, std::ssize(elements)));
  for (auto i = static_cast<size_t>(place(2, 0)); i < end; ++i)
    if (equal(elements[i], *p[1], call.budget)) return Value::integer(static_cast<int64_t>(i));
  MG_CHECK(!p[0]->is_tuple(), "tuple.index(x): x not in tuple");
  fail("{} is not in {}", repr(*p[1], call.budget),
       p[0]->is_form(Sequence::Form::range) ? "range" : "list");
}

// ---- numbers

Value self_number(Call& call) {
  const Parameters p(call, "conjugate", {"self"}, 1);
  return positive(*p[0]);
}

Value bit_length(Call& call) {
  const Parameters p(call, "bit_length", {"self"}, 1);
  return Value::integer(p[0]->as_big().bits());
}

Value is_whole_real(Call& call) {
  const Parameters p(call, "is_integer", {"self"}, 1);
  const double value = p[0]->as_number();
  return Value::boolean(std::isfinite(value) && value == std::trunc(value));
}

constexpr std::array kDictMethods = {
    NamedNative{"copy", copy},
    NamedNative{"fromkeys", from_keys},
    NamedNative{"get", get},
    NamedNative{"items", view<Part::items>},
    NamedNative{"keys", view<Part::keys>},
    NamedNative{"values", view<Part::values>},
};
constexpr std::array kListMethods = {
    NamedNative{"copy", copy},
    NamedNative{"count", count},
    NamedNative{"index", index},
};
constexpr std::array kTupleMethods = {
    NamedNative{"count", count},
    NamedNative{"index", index},
};
constexpr std::array kIntegerMethods = {
    NamedNative{"bit_length", bit_length},
    NamedNative{"conjugate", self_number},
};
constexpr std::array kRealMethods = {
    NamedNative{"conjugate", self_number},
    NamedNative{"is_integer", is_whole_real},
};

std::span<const NamedNative> methods_of(const Value& value) {
  if (value.is_text()) return text_methods();
  if (value.is_dict()) return kDictMethods;
  if (value.is_form(Sequence::Form::list)) return kListMethods;
  if (value.is_tuple() || value.is_form(Sequence::Form::range)) return kTupleMethods;
  if (value.is_whole()) return kIntegerMethods;
  if (value.is_real()) return kRealMethods;
  return {};
}

// Members that are data, not methods.
std::optional<Value> data_member(const Value& value, std::string_view name) {
  if (value.is_number()) {
    if (name == "real") return positive(value);
    if (name == "imag") return value.is_real() ? Value::real(0) : Value::integer(0);
    if (value.is_whole() && name == "numerator") return positive(value);
    if (value.is_whole() && name == "denominator") return Value::integer(1);
  }
  if (value.is_form(Sequence::Form::range)) {
    const auto& [start, stop, step] = value.as_sequence().range;
    if (name == "start") return Value::integer(start);
    if (name == "stop") return Value::integer(stop);
    if (name == "step") return Value::integer(step);
  }
  if (value.is_form(Sequence::Form::group)) {
    if (name == "grouper") return value.as_sequence().elements[0];
    if (name == "list") return value.as_sequence().elements[1];
  }
  return std::nullopt;
}

}  // namespace

std::optional<Value> member_of(const Value& value, std::string_view name, Budget& budget) {
  if (const Native native = find_in(methods_of(value), name))
    return Value::object(std::make_shared<Function>(native, value, &budget));
  return data_member(value, name);
}

bool is_mutating(const Value& value, std::string_view name) {
  constexpr std::string_view kOfList[] = {"append", "clear",  "pop",  "reverse",
                                          "insert", "extend", "sort", "remove"};
  constexpr std::string_view kOfDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto among = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (value.is_form(Sequence::Form::list)) return among(kOfList);
  return value.is_dict() && among(kOfDict);
}

std::vector<std::string_view> split_lines(std::string_view text, Budget& budget, bool with_ends) {
  std::vector<std::string_view> lines;
  Budget::Held held(&budget, 0);
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_character(text, at);
    const bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                        c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    budget.spend(1);
    held.grow(sizeof(std::string_view));
    lines.push_back(text.substr(begin, (with_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t most, Budget& budget) {
  std::string result;
  size_t at = 0;
  for (int64_t done = 0; most < 0 || done < most; ++done) {
    const size_t found = find_text(text, from, at);
    if (found == std::string_view::npos || (from.empty() && done > 0 && at >= text.size())) break;
    size_t behind = found + from.size();
    size_t kept = found;
    if (from.empty() && done > 0) {  // before each letter, and at the end
      next_character(text, behind);
      kept = behind;
    }
    result += text.substr(at, kept - at);
    result += to;
    budget.spend_bytes(to.size() + (behind - at));
    budget.check_length(result.size());
    at = behind;
  }
  result += text.substr(at);
  budget.spend_bytes(result.size());
  return result;
}

std::string centered(std::string_view text, int64_t width, std::string_view fill, Budget& budget) {
  const int64_t length = count_characters(text), missing = width - length;
  if (missing <= 0) return std::string(text);
  const int64_t left = missing / 2 + (missing & width & 1);
  return aligned(aligned(text, length + left, fill, Align::right, budget), width, fill, Align::left,
                 budget);
}

std::string strip_text(const std::string& text, const Parameters& p, bool left, bool right,
                       Budget& budget) {
  if (!p.given_and_not_none(1)) return std::string(strip_space(text, left, right));
  const std::string& letters = p.text(1);
  budget.spend(
      static_cast<int64_t>(std::min(text.size(), size_t{1} << 20) / 16 * letters.size() / 16));
  return std::string(strip_any(text, letters, left, right));
}

}  // namespace megatron::jinja
