// Methods of texts and dicts. Positions count code points.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/conversions.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

using Pieces = std::vector<std::string_view>;

Value text_of(std::string_view text) { return Value::text(std::string(text)); }

const std::string& self(Call& call) {
  call.budget.spend_bytes(call.positional[0].bytes().size());
  return call.positional[0].bytes();
}

template <std::string (*map)(std::string_view)>
Value mapped_method(Call& call) {
  const Parameters p(call, "str.method", {"self"}, 1);
  return Value::text(map(self(call)));
}

template <bool left, bool right>
Value strip(Call& call) {
  const Parameters p(call, "strip", {"self", "chars"}, 1);
  return Value::text(strip_text(self(call), p, left, right, call.budget));
}

Value list_of(const Pieces& parts, Budget& budget) {
  budget.spend(static_cast<int64_t>(parts.size()));
  Values elements;
  for (const std::string_view part : parts) elements.push_back(text_of(part));
  return Value::list(std::move(elements));
}

// At most `most` cuts at runs of whitespace; less than 0: all.
Pieces split_at_space(std::string_view text, int64_t most) {
  Pieces parts;
  text = strip_space(text, true, false);
  while (!text.empty() && static_cast<int64_t>(parts.size()) != most) {
    size_t end = 0;
    for (size_t at = 0; at < text.size(); end = at)
      if (is_space(next_code_point(text, at))) break;
    parts.push_back(text.substr(0, end));
    text = strip_space(text.substr(end), true, false);
  }
  if (!text.empty()) parts.push_back(text);
  return parts;
}

Pieces split_at(std::string_view text, std::string_view separator, int64_t most, bool right) {
  Pieces parts;
  while (static_cast<int64_t>(parts.size()) != most) {
    const size_t at = right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    const size_t behind = at + separator.size();
    parts.push_back(right ? text.substr(behind) : text.substr(0, at));
    text = right ? text.substr(0, at) : text.substr(behind);
  }
  parts.push_back(text);
  if (right) std::reverse(parts.begin(), parts.end());
  return parts;
}

template <bool right>
Value split(Call& call) {
  const Parameters p(call, right ? "rsplit" : "split", {"self", "sep", "maxsplit"}, 1);
  const int64_t most = std::max<int64_t>(p.whole(2, -1), -1);
  const std::string& text = self(call);
  if (!p.given_and_not_none(1)) {
    MG_CHECK(!right || most < 0, "rsplit() with maxsplit needs a separator");
    return list_of(split_at_space(text, most), call.budget);
  }
  MG_CHECK(!p.text(1).empty(), "empty separator");
  return list_of(split_at(text, p.text(1), most, right), call.budget);
}

Value splitlines(Call& call) {
  const Parameters p(call, "splitlines", {"self"}, 1);
  return list_of(split_lines(self(call)), call.budget);
}

template <bool right>
Value find(Call& call) {
  const Parameters p(call, right ? "rfind" : "find", {"self", "sub"}, 2);
  const std::string& text = self(call);
  const size_t at = right ? text.rfind(p.text(1)) : text.find(p.text(1));
  if (at == std::string::npos) return Value::integer(-1);
  return Value::integer(count_code_points(std::string_view(text).substr(0, at)));
}

Value count(Call& call) {
  const Parameters p(call, "count", {"self", "sub"}, 2);
  const std::string &text = self(call), &sub = p.text(1);
  if (sub.empty()) return Value::integer(p[0]->as_text().length + 1);
  int64_t found = 0;
  for (size_t at = text.find(sub); at != std::string::npos; at = text.find(sub, at + sub.size()))
    ++found;
  return Value::integer(found);
}

template <bool at_end>
Value affix(Call& call) {
  const char* name = at_end ? "endswith" : "startswith";
  const Parameters p(call, name, {"self", "affix"}, 2);
  const std::string_view text = p[0]->bytes();
  const auto matches = [&](const Value& value) {
    MG_CHECK(value.is_text(), "{} first arg must be str or a tuple of str, not {}", name,
             value.type_name());
    return at_end ? text.ends_with(value.bytes()) : text.starts_with(value.bytes());
  };
  if (!p[1]->is_form(Sequence::Form::tuple)) return Value::boolean(matches(*p[1]));
  const Values& choices = p[1]->as_sequence().elements;
  return Value::boolean(std::any_of(choices.begin(), choices.end(), matches));
}

template <bool at_end>
Value remove_affix(Call& call) {
  const char* name = at_end ? "removesuffix" : "removeprefix";
  const Parameters p(call, name, {"self", "affix"}, 2);
  const std::string_view text = self(call), affix = p.text(1);
  if (!(at_end ? text.ends_with(affix) : text.starts_with(affix))) return *p[0];
  return text_of(text.substr(at_end ? 0 : affix.size(), text.size() - affix.size()));
}

Value replace_method(Call& call) {
  const Parameters p(call, "replace", {"self", "old", "new", "count"}, 3);
  return Value::text(replace_all(self(call), p.text(1), p.text(2), p.whole(3, -1), call.budget));
}

Value join(Call& call) {
  const Parameters p(call, "join", {"self", "iterable"}, 2);
  std::string joined;
  const Values elements = elements_of(*p[1], call.budget);
  for (size_t i = 0; i < elements.size(); ++i) {
    MG_CHECK(elements[i].is_text(), "sequence item {}: expected str instance, {} found", i,
             elements[i].type_name());
    if (i > 0) joined += p[0]->bytes();
    joined += elements[i].bytes();
    call.budget.spend_bytes(elements[i].bytes().size() + p[0]->bytes().size());
    call.budget.check_length(joined.size());
  }
  return Value::text(std::move(joined));
}

// The value of {}, {0} or {name}; next: the number of the next {}.
const Value& placed(const Call& call, const std::string& name, size_t& next) {
  for (const auto& [key, value] : call.keyword)
    if (key == name) return value;
  const bool digits = name.size() < 6 && name.find_first_not_of("0123456789") == std::string::npos;
  MG_CHECK(digits,
           "format: '{{{}}}' is not supported or names no argument; supported are {{}}, {{0}} and "
           "{{name}}",
           name);
  const size_t index = name.empty() ? next++ : std::stoul(name);
  MG_CHECK(index + 1 < call.positional.size(), "Replacement index {} out of range", index);
  return call.positional[index + 1];
}

Value format_method(Call& call) {
  const std::string& text = self(call);
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c != '{' && c != '}') {
      out += c;
    } else if (at + 1 < text.size() && text[at + 1] == c) {
      out += c;
      ++at;
    } else {
      const size_t end = text.find('}', at);
      MG_CHECK(c == '{' && end != std::string::npos, "Single '{}' encountered in format string", c);
      out += to_text(placed(call, text.substr(at + 1, end - at - 1), next), call.budget);
      call.budget.spend_bytes(out.size());
      at = end;
    }
  }
  return Value::text(std::move(out));
}

Value get(Call& call) {
  const Parameters p(call, "get", {"self", "key", "default"}, 2);
  check_hashable(*p[1]);
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
  for (const auto& [key, value] : p[0]->as_dict().members) {
    elements.push_back(part == Part::keys     ? key
                       : part == Part::values ? value
                                              : Value::tuple({key, value}));
  }
  call.budget.spend(static_cast<int64_t>(elements.size()));
  return Value::sequence(Sequence::Form::view, std::move(elements), std::string("dict_") + name);
}

constexpr std::array kTextMethods = {
    NamedNative{"capitalize", mapped_method<to_capitalized>},
    NamedNative{"count", count},
    NamedNative{"endswith", affix<true>},
    NamedNative{"find", find<false>},
    NamedNative{"format", format_method},
    NamedNative{"join", join},
    NamedNative{"lower", mapped_method<to_lower>},
    NamedNative{"lstrip", strip<true, false>},
    NamedNative{"removeprefix", remove_affix<false>},
    NamedNative{"removesuffix", remove_affix<true>},
    NamedNative{"replace", replace_method},
    NamedNative{"rfind", find<true>},
    NamedNative{"rsplit", split<true>},
    NamedNative{"rstrip", strip<false, true>},
    NamedNative{"split", split<false>},
    NamedNative{"splitlines", splitlines},
    NamedNative{"startswith", affix<false>},
    NamedNative{"strip", strip<true, true>},
    NamedNative{"title", mapped_method<to_title>},
    NamedNative{"upper", mapped_method<to_upper>},
};

constexpr std::array kDictMethods = {
    NamedNative{"get", get},
    NamedNative{"items", view<Part::items>},
    NamedNative{"keys", view<Part::keys>},
    NamedNative{"values", view<Part::values>},
};

}  // namespace

std::optional<Value> method_of(const Value& value, std::string_view name) {
  const Native native = value.is_text()   ? find_in(kTextMethods, name)
                        : value.is_dict() ? find_in(kDictMethods, name)
                                          : nullptr;
  if (native == nullptr) return std::nullopt;
  return Value::object(std::make_shared<Function>(native, value));
}

std::vector<std::string_view> split_lines(std::string_view text) {
  Pieces lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_code_point(text, at);
    const bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                        c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, end - begin));
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
    const size_t found = text.find(from, at);
    if (found == std::string_view::npos || (from.empty() && done > 0 && at >= text.size())) break;
    size_t behind = found + from.size();
    size_t kept = found;
    if (from.empty() && done > 0) {  // in front of each letter, and at the end
      next_code_point(text, behind);
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

std::string strip_text(const std::string& text, const Parameters& p, bool left, bool right,
                       Budget& budget) {
  if (!p.given_and_not_none(1)) return std::string(strip_space(text, left, right));
  const std::string& letters = p.text(1);
  budget.spend(
      static_cast<int64_t>(std::min(text.size(), size_t{1} << 20) / 16 * letters.size() / 16));
  return std::string(strip_any(text, letters, left, right));
}

}  // namespace megatron::jinja
