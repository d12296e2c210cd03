// Methods of str. Positions count code points.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/conversions.h"
#include "jinja/formatting.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

const std::string& self(Call& call) {
  call.budget.spend_bytes(call.positional[0].bytes().size());
  return call.positional[0].bytes();
}

Value text_of(std::string_view text, Call& call) {
  return Value::text(std::string(text), &call.budget);
}

template <std::string (*map)(std::string_view)>
Value mapped_method(Call& call) {
  const Parameters p(call, "str.method", {"self"}, 1);
  call.budget.spend_items(p[0]->bytes().size());  // one letter at a time, in the worst case
  return Value::text(map(self(call)), &call.budget);
}

template <bool left, bool right>
Value strip(Call& call) {
  const Parameters p(call, "strip", {"self", "chars"}, 1);
  return Value::text(strip_text(self(call), p, left, right, call.budget), &call.budget);
}

// ---- pieces

// Removes the first word (right: the last) from the text, and the whitespace at that end.
std::string_view take_word(std::string_view& text, bool right) {
  size_t end = 0;  // with right: start of the last word
  for (size_t at = 0; at < text.size();) {
    const bool space = is_space(next_character(text, at));
    if (!right && space) break;
    if (!right || space) end = at;
  }
  const std::string_view word = right ? text.substr(end) : text.substr(0, end);
  text = strip_space(right ? text.substr(0, end) : text.substr(end), !right, right);
  return word;
}

// Splits at runs of whitespace, at most `most` times, or at all of them if `most` is less than 0.
Values split_at_space(std::string_view text, int64_t most, bool right, Call& call) {
  Values parts;
  text = strip_space(text, !right, right);
  while (!text.empty() && std::ssize(parts) != most) {
    if (right) call.budget.spend_bytes(text.size());
    call.budget.spend(1);
    parts.push_back(text_of(take_word(text, right), call));
  }
  if (!text.empty()) parts.push_back(text_of(text, call));
  return parts;
}

Values split_at(std::string_view text, std::string_view separator, int64_t most, bool right,
                Call& call) {
  Values parts;
  while (std::ssize(parts) != most) {
    const size_t at = right ? rfind_text(text, separator) : find_text(text, separator);
    if (at == std::string_view::npos) break;
    const size_t behind = at + separator.size();
    call.budget.spend_bytes(right ? text.size() + 32 : 32);
    parts.push_back(text_of(right ? text.substr(behind) : text.substr(0, at), call));
    text = right ? text.substr(0, at) : text.substr(behind);
  }
  parts.push_back(text_of(text, call));
  return parts;
}

template <bool right>
Value split(Call& call) {
  const Parameters p(call, right ? "rsplit" : "split", {"self", "sep", "maxsplit"}, 1);
  const int64_t most = std::max<int64_t>(p.whole(2, -1), -1);
  const std::string& text = self(call);
  const bool separated = p.given_and_not_none(1);
  MG_CHECK(!separated || !p.text(1).empty(), "empty separator");
  const bool from_right = right && most >= 0;  // else the order is irrelevant
  Values parts = separated ? split_at(text, p.text(1), most, from_right, call)
                           : split_at_space(text, most, from_right, call);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return Value::list(std::move(parts), &call.budget);
}

Value splitlines(Call& call) {
  const Parameters p(call, "splitlines", {"self", "keepends"}, 1);
  Values lines;
  for (const std::string_view line : split_lines(self(call), call.budget, p.flag(1, false)))
    lines.push_back(text_of(line, call));
  return Value::list(std::move(lines), &call.budget);
}

template <bool right>
Value partition(Call& call) {
  const Parameters p(call, right ? "rpartition" : "partition", {"self", "sep"}, 2);
  const std::string_view text = self(call), sep = p.text(1);
  MG_CHECK(!sep.empty(), "empty separator");
  const size_t at = right ? rfind_text(text, sep) : find_text(text, sep);
  Values parts(3, Value::text(""));
  if (at == std::string_view::npos) {
    parts[right ? 2 : 0] = *p[0];
  } else {
    parts = {text_of(text.substr(0, at), call), *p[1], text_of(text.substr(at + sep.size()), call)};
  }
  return Value::tuple(std::move(parts), &call.budget);
}

Value join_method(Call& call) {
  const Parameters p(call, "join", {"self", "iterable"}, 2);
  std::string joined;
  check_defined(*p[1]);
  const Values elements = elements_of(*p[1], call.budget);
  for (size_t i = 0; i < elements.size(); ++i) {
    MG_CHECK(elements[i].is_text(), "sequence item {}: expected str instance, {} found", i,
             elements[i].type_name());
    if (i > 0) joined += p[0]->bytes();
    joined += elements[i].bytes();
    call.budget.spend_bytes(elements[i].bytes().size() + p[0]->bytes().size());
    call.budget.check_length(joined.size());
  }
  return Value::text(std::move(joined), &call.budget);
}

// ---- search within [begin, end) of the text, parameters 2 and 3

struct Window {
  std::string_view text;
  int64_t begin;
};

std::optional<Window> window(Call& call, const Parameters& p) {
  const std::string& text = self(call);
  const int64_t length = p[0]->as_text().length;
  const auto place = [&](size_t i, int64_t initial) {
    if (!p.given_and_not_none(i)) return initial;
    const int64_t at = p.whole(i, 0);
    return at < 0 ? std::max<int64_t>(at + length, 0) : at;
  };
  const int64_t begin = place(2, 0), end = std::min(place(3, length), length);
  if (begin > end) return std::nullopt;
  return Window{begin == 0 && end == length ? text : substring(text, begin, end), begin};
}

int64_t place_of(Call& call, const Parameters& p, bool right) {
  const std::optional<Window> part = window(call, p);
  if (!part) return -1;
  const size_t at = right ? rfind_text(part->text, p.text(1)) : find_text(part->text, p.text(1));
  if (at == std::string_view::npos) return -1;
  return part->begin + count_characters(part->text.substr(0, at));
}

template <bool right>
Value find(Call& call) {
  const Parameters p(call, right ? "rfind" : "find", {"self", "sub", "start", "end"}, 2);
  return Value::integer(place_of(call, p, right));
}

template <bool right>
Value index_method(Call& call) {
  const Parameters p(call, right ? "rindex" : "index", {"self", "sub", "start", "end"}, 2);
  const int64_t at = place_of(call, p, right);
  MG_CHECK(at >= 0, "substring not found");
  return Value::integer(at);
}

Value count_method(Call& call) {
  const Parameters p(call, "count", {"self", "sub", "start", "end"}, 2);
  const std::optional<Window> part = window(call, p);
  const std::string& sub = p.text(1);
  if (!part) return Value::integer(0);
  if (sub.empty()) return Value::integer(count_characters(part->text) + 1);
  int64_t found = 0;
  for (size_t at = find_text(part->text, sub); at != std::string_view::npos;
       at = find_text(part->text, sub, at + sub.size()))
    ++found;
  return Value::integer(found);
}

template <bool at_end>
Value affix(Call& call) {
  const char* name = at_end ? "endswith" : "startswith";
  const Parameters p(call, name, {"self", "affix", "start", "end"}, 2);
  const std::optional<Window> part = window(call, p);
  const bool many = p[1]->is_tuple();
  const auto matches = [&](const Value& value) {
    MG_CHECK(value.is_text() || !many, "tuple for {} must only contain str, not {}", name,
             value.type_name());
    MG_CHECK(value.is_text(), "{} first arg must be str or a tuple of str, not {}", name,
             value.type_name());
    call.budget.spend(1);
    return part &&
           (at_end ? part->text.ends_with(value.bytes()) : part->text.starts_with(value.bytes()));
  };
  if (!many) return Value::boolean(matches(*p[1]));
  const Values& choices = p[1]->as_sequence().elements;
  return Value::boolean(std::any_of(choices.begin(), choices.end(), matches));
}

template <bool at_end>
Value remove_affix(Call& call) {
  const char* name = at_end ? "removesuffix" : "removeprefix";
  const Parameters p(call, name, {"self", "affix"}, 2);
  const std::string_view text = self(call), affix = p.text(1);
  if (!(at_end ? text.ends_with(affix) : text.starts_with(affix))) return *p[0];
  return text_of(text.substr(at_end ? 0 : affix.size(), text.size() - affix.size()), call);
}

Value replace_method(Call& call) {
  const Parameters p(call, "replace", {"self", "old", "new", "count"}, 3);
  return Value::text(replace_all(self(call), p.text(1), p.text(2), p.whole(3, -1), call.budget),
                     &call.budget);
}

// ---- alignment

std::string fill_letter(const Parameters& p) {
  const std::string fill = p.text(2, " ");
  MG_CHECK(count_characters(fill) == 1, "The fill character must be exactly one character long");
  return fill;
}

template <Align align>
Value justify(Call& call) {
  const Parameters p(call, "ljust, rjust", {"self", "width", "fillchar"}, 2);
  return Value::text(aligned(self(call), p.whole(1, 0), fill_letter(p), align, call.budget),
                     &call.budget);
}

Value center_method(Call& call) {
  const Parameters p(call, "center", {"self", "width", "fillchar"}, 2);
  return Value::text(centered(self(call), p.whole(1, 0), fill_letter(p), call.budget),
                     &call.budget);
}

Value zfill(Call& call) {
  const Parameters p(call, "zfill", {"self", "width"}, 2);
  const std::string& text = self(call);
  const size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  return Value::text(
      text.substr(0, sign) + aligned(text.substr(sign), p.whole(1, 0) - static_cast<int64_t>(sign),
                                     "0", Align::right, call.budget),
      &call.budget);
}

Value expandtabs(Call& call) {
  const Parameters p(call, "expandtabs", {"self", "tabsize"}, 1);
  const int64_t size = p.whole(1, 8);
  std::string out;
  int64_t column = 0;
  for (const char c : self(call)) {
    if (c == '\t') {
      const int64_t width = size > 0 ? size - column % size : 0;
      call.budget.check_length(out.size() + static_cast<size_t>(width));
      out.append(static_cast<size_t>(width), ' ');
      column += width;
      continue;
    }
    out += c;
    if (!continues_character(c)) ++column;
    if (c == '\n' || c == '\r') column = 0;
  }
  call.budget.spend_bytes(out.size());
  return Value::text(std::move(out), &call.budget);
}

// ---- letters

bool is_ascii(char32_t c) { return c < 0x80; }
bool is_alphanumeric(char32_t c) { return is_letter(c) || is_numeric(c); }

// True if all letters are of `kind`. of_empty: the result for an empty text.
template <bool (*kind)(char32_t), bool of_empty>
Value all(Call& call) {
  const Parameters p(call, "str.is...", {"self"}, 1);
  const std::string& text = self(call);
  if (text.empty()) return Value::boolean(of_empty);
  for (size_t at = 0; at < text.size();)
    if (!kind(next_character(text, at))) return Value::boolean(false);
  return Value::boolean(true);
}

// True if some letter is of the wanted case and none is of the other.
template <bool (*wanted)(char32_t), bool (*against)(char32_t)>
Value has_case_only(Call& call) {
  const Parameters p(call, "str.is...", {"self"}, 1);
  return Value::boolean(is_cased(self(call), wanted, against));
}

Value istitle(Call& call) {
  const Parameters p(call, "istitle", {"self"}, 1);
  bool within = false, found = false;
  const std::string& text = self(call);
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    const bool first = is_upper(c) || is_title(c), lower = !first && is_lower(c);
    if (first ? within : lower && !within) return Value::boolean(false);
    within = first || lower;
    found = found || within;
  }
  return Value::boolean(found);
}

std::string swapped(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_character(text, at);
    const std::string_view letter = text.substr(begin, at - begin);
    out += is_upper(c) ? to_lower(letter) : is_lower(c) ? to_upper(letter) : std::string(letter);
  }
  return out;
}

Value isidentifier(Call& call) {
  const Parameters p(call, "isidentifier", {"self"}, 1);
  return Value::boolean(is_identifier(self(call)));
}

// ---- tables of letters

Value code_of(const Value& key) {
  if (!key.is_text()) return key;
  MG_CHECK(key.as_text().length == 1, "string keys in translate table must be of length 1");
  size_t at = 0;
  return Value::integer(next_character(key.bytes(), at));
}

Value maketrans(Call& call) {
  const Parameters p(call, "maketrans", {"self", "x", "y", "z"}, 2);
  std::vector<std::pair<Value, Value>> members;
  if (!p.given(2)) {
    MG_CHECK(p[1]->is_dict(), "if you give only one argument to maketrans it must be a dict");
    for (const auto& [key, value] : p[1]->as_dict().members)
      insert_member(members, code_of(key), value, call.budget);
  } else {
    const std::vector<char32_t> from = code_points(p.text(1)), to = code_points(p.text(2));
    MG_CHECK(from.size() == to.size(), "the first two maketrans arguments must have equal length");
    for (size_t i = 0; i < from.size(); ++i)
      insert_member(members, Value::integer(from[i]), Value::integer(to[i]), call.budget);
    for (const char32_t c : code_points(p.text(3, "")))
      insert_member(members, Value::integer(c), Value(), call.budget);
  }
  return Value::dict(std::move(members), &call.budget);
}

Value translate(Call& call) {
  const Parameters p(call, "translate", {"self", "table"}, 2);
  MG_CHECK(p[1]->is_dict(), "translate() takes a dict, not {}", p[1]->type_name());
  std::string out;
  const std::string& text = self(call);
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    const Value to = element_of(*p[1], Value::integer(c), call.budget);
    if (to.is_undefined()) append_character(c, out);
    else if (to.is_text()) out += to.bytes();
    else if (!to.is_none()) out += format_value(to, "c", call.budget);
    call.budget.check_length(out.size());
  }
  return Value::text(std::move(out), &call.budget);
}

// ---- format

Value format_method(Call& call) {
  const auto lookup = [&](const std::string& name) -> Value {
    for (const auto& [key, value] : call.keyword)
      if (key == name) return value;
    const bool number = name.find_first_not_of("0123456789") == std::string::npos;
    MG_CHECK(number, "{}", repr_of_text(name));
    MG_CHECK(name.size() < 10 && std::stoul(name) + 1 < call.positional.size(),
             "Replacement index {} out of range for positional args tuple", name);
    return call.positional[std::stoul(name) + 1];
  };
  return Value::text(format_fields(self(call), lookup, call.budget), &call.budget);
}

Value format_map(Call& call) {
  const Parameters p(call, "format_map", {"self", "mapping"}, 2);
  MG_CHECK(p[1]->is_dict(), "format_map() takes a dict, not {}", p[1]->type_name());
  const auto lookup = [&](const std::string& name) -> Value {
    const Value* found = p[1]->as_dict().find(name);
    MG_CHECK(found != nullptr, "{}", repr_of_text(name));
    return *found;
  };
  return Value::text(format_fields(self(call), lookup, call.budget), &call.budget);
}

Value encode(Call&) { fail("str.encode() is not supported: templates have no values of bytes"); }

constexpr std::array kTextMethods = {
    NamedNative{"capitalize", mapped_method<to_capitalized>},
    NamedNative{"casefold", mapped_method<to_folded>},
    NamedNative{"center", center_method},
    NamedNative{"count", count_method},
    NamedNative{"encode", encode},
    NamedNative{"endswith", affix<true>},
    NamedNative{"expandtabs", expandtabs},
    NamedNative{"find", find<false>},
    NamedNative{"format", format_method},
    NamedNative{"format_map", format_map},
    NamedNative{"index", index_method<false>},
    NamedNative{"isalnum", all<is_alphanumeric, false>},
    NamedNative{"isalpha", all<is_letter, false>},
    NamedNative{"isascii", all<is_ascii, true>},
    NamedNative{"isdecimal", all<is_decimal, false>},
    NamedNative{"isdigit", all<is_digit, false>},
    NamedNative{"isidentifier", isidentifier},
    NamedNative{"islower", has_case_only<is_lower, is_upper>},
    NamedNative{"isnumeric", all<is_numeric, false>},
    NamedNative{"isprintable", all<is_printable, true>},
    NamedNative{"isspace", all<is_space, false>},
    NamedNative{"istitle", istitle},
    NamedNative{"isupper", has_case_only<is_upper, is_lower>},
    NamedNative{"join", join_method},
    NamedNative{"ljust", justify<Align::left>},
    NamedNative{"lower", mapped_method<to_lower>},
    NamedNative{"lstrip", strip<true, false>},
    NamedNative{"maketrans", maketrans},
    NamedNative{"partition", partition<false>},
    NamedNative{"removeprefix", remove_affix<false>},
    NamedNative{"removesuffix", remove_affix<true>},
    NamedNative{"replace", replace_method},
    NamedNative{"rfind", find<true>},
    NamedNative{"rindex", index_method<true>},
    NamedNative{"rjust", justify<Align::right>},
    NamedNative{"rpartition", partition<true>},
    NamedNative{"rsplit", split<true>},
    NamedNative{"rstrip", strip<false, true>},
    NamedNative{"split", split<false>},
    NamedNative{"splitlines", splitlines},
    NamedNative{"startswith", affix<false>},
    NamedNative{"strip", strip<true, true>},
    NamedNative{"swapcase", mapped_method<swapped>},
    NamedNative{"title", mapped_method<to_title>},
    NamedNative{"translate", translate},
    NamedNative{"upper", mapped_method<to_upper>},
    NamedNative{"zfill", zfill},
};

}  // namespace

std::span<const NamedNative> text_methods() { return kTextMethods; }

}  // namespace megatron::jinja
