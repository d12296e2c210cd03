// Filters of texts.
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

template <std::string (*map)(std::string_view)>
Value mapped(Call& call) {
  const Parameters p(call, "filter", {"s"}, 1);
  const std::string text = subject(call);
  call.budget.spend_items(text.size());  // one letter at a time, in the worst case
  return Value::text(map(text), &call.budget);
}

// Unlike str.title, an apostrophe does not end a word.
std::string words_as_titles(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const auto between = [&](size_t i) {
      const char32_t c = next_character(text, i);
      return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    };
    const size_t begin = at;
    next_character(text, at);
    const size_t first = at;
    if (!between(begin))
      while (at < text.size() && !between(at)) next_character(text, at);
    result +=
        to_upper(text.substr(begin, first - begin)) + to_lower(text.substr(first, at - first));
  }
  return result;
}

Value trim(Call& call) {
  const Parameters p(call, "trim", {"value", "chars"}, 1);
  return Value::text(strip_text(subject(call), p, true, true, call.budget), &call.budget);
}

Value replace(Call& call) {
  const Parameters p(call, "replace", {"s", "old", "new", "count"}, 3);
  const int64_t count = p.given_and_not_none(3) ? p.whole(3, -1) : -1;
  return Value::text(replace_all(subject(call), to_text(*p[1], call.budget),
                                 to_text(*p[2], call.budget), count, call.budget),
                     &call.budget);
}

// An indent is given as a number of spaces or as a text.
std::string spaces(const Parameters& p, size_t i, int64_t initial) {
  if (p.given(i) && p[i]->is_text()) return p.text(i);
  const int64_t width = p.whole(i, initial);
  MG_CHECK(width <= 1000, "an indent of {} is too wide; the limit is 1000", width);
  return std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
}

Value indent(Call& call) {
  const Parameters p(call, "indent", {"s", "width", "first", "blank"}, 1);
  const std::string text = subject(call) + "\n", space = spaces(p, 1, 4);
  std::string result = p.flag(2, false) ? space : "";
  const std::vector<std::string_view> lines = split_lines(text, call.budget);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += '\n';
    if (i > 0 && (p.flag(3, false) || !lines[i].empty())) result += space;
    result += lines[i];
    call.budget.spend_bytes(space.size() + lines[i].size());
    call.budget.check_length(result.size());
  }
  return Value::text(std::move(result), &call.budget);
}

Value truncate(Call& call) {
  const Parameters p(call, "truncate", {"s", "length", "killwords", "end", "leeway"}, 1);
  const std::string text = subject(call), end = p.text(3, "...");
  const int64_t length = p.whole(1, 255), tail = count_characters(end);
  const int64_t leeway = p.given_and_not_none(4) ? p.whole(4, 5) : 5;
  MG_CHECK(length >= tail, "expected length >= {}, got {}", tail, length);
  MG_CHECK(leeway >= 0, "expected leeway >= 0, got {}", leeway);
  if (count_characters(text) - leeway <= length) return Value::text(text, &call.budget);
  std::string_view kept = substring(text, 0, length - tail);
  if (!p.flag(2, false)) kept = kept.substr(0, kept.rfind(' '));
  return Value::text(std::string(kept) + end, &call.budget);
}

Value wordcount(Call& call) {
  const Parameters p(call, "wordcount", {"s"}, 1);
  int64_t words = 0;
  bool within = false;
  const std::string text = subject(call);
  for (size_t at = 0; at < text.size();) {
    const bool word = is_word(next_character(text, at));
    words += word && !within;
    within = word;
  }
  return Value::integer(words);
}

Value format(Call& call) {
  const std::string text = subject(call);
  MG_CHECK(call.positional.size() == 1 || call.keyword.empty(),
           "can't handle positional and keyword arguments at the same time");
  Value values;
  if (call.keyword.empty()) {
    values = Value::tuple(Values(call.positional.begin() + 1, call.positional.end()), &call.budget);
  } else {
    std::vector<std::pair<Value, Value>> members;
    for (const auto& [name, value] : call.keyword) members.emplace_back(Value::text(name), value);
    values = Value::dict(std::move(members), &call.budget);
  }
  return Value::text(percent_format(text, values, call.budget), &call.budget);
}

Value center(Call& call) {
  const Parameters p(call, "center", {"value", "width"}, 1);
  return Value::text(centered(subject(call), p.whole(1, 80), " ", call.budget), &call.budget);
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

// query: the text is for a query string, in which a slash is quoted and a space becomes a plus.
std::string quote_url(std::string_view text, bool query) {
  const std::string_view marks = query ? "_.-~" : "_.-~/";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       marks.find(c) != std::string_view::npos;
    if (plain) out += c;
    else if (query && c == ' ') out += '+';
    else out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

// Takes a text, or pairs of a name and a value.
Value urlencode(Call& call) {
  const Parameters p(call, "urlencode", {"value"}, 1);
  if (!p[0]->is_dict() && !p[0]->is_sequence())
    return Value::text(quote_url(subject(call), false), &call.budget);
  const Values pairs =
      p[0]->is_dict() ? pairs_of(*p[0], call.budget) : elements_of(*p[0], call.budget);
  std::string out;
  for (const Value& pair : pairs) {
    const Values both = elements_of(pair, call.budget);
    MG_CHECK(both.size() == 2, "urlencode: {} is not a pair of a name and a value",
             repr(pair, call.budget));
    if (!out.empty()) out += '&';
    out += quote_url(to_text(both[0], call.budget), true) + "=" +
           quote_url(to_text(both[1], call.budget), true);
    call.budget.spend_bytes(out.size());
  }
  return Value::text(std::move(out), &call.budget);
}

// The attributes of an XML element, except those that are none or undefined.
Value xmlattr(Call& call) {
  const Parameters p(call, "xmlattr", {"d", "autospace"}, 1);
  MG_CHECK(p[0]->is_dict(), "'{}' object has no attribute 'items'", p[0]->type_name());
  std::string out;
  for (const auto& [key, value] : p[0]->as_dict().members) {
    if (value.is_none() || value.is_undefined()) continue;
    const std::string name = to_text(key, call.budget);
    MG_CHECK(name.find_first_of(" \t\n\f\r/>=") == std::string::npos,
             "Invalid character in attribute name: {}", repr_of_text(name));
    if (!out.empty() || p.flag(1, true)) out += ' ';
    out += escape_html(name) + "=\"" + escape_html(to_text(value, call.budget)) + "\"";
    call.budget.spend_bytes(out.size());
  }
  return Value::text(std::move(out), &call.budget);
}

Value default_value(Call& call) {
  const Parameters p(call, "default", {"value", "default_value", "boolean"}, 1);
  const bool replace = p[0]->is_undefined() || (p.flag(2, false) && !p[0]->truth());
  if (!replace) return *p[0];
  return p.given(1) ? *p[1] : Value::text("");
}

Value to_string(Call& call) {
  const Parameters p(call, "string", {"object"}, 1);
  return p[0]->is_text() ? *p[0] : Value::text(to_text(*p[0], call.budget), &call.budget);
}

Value json(Call& call) {
  const Parameters p(call, "tojson", {"x", "ensure_ascii", "indent", "separators", "sort_keys"}, 1);
  JsonStyle style;
  style.ensure_ascii = p.flag(1, false);
  style.sort_keys = p.flag(4, false);
  if (p.given_and_not_none(2)) style.indent = spaces(p, 2, 0);
  style.between_items = style.indent ? "," : ", ";
  if (p.given_and_not_none(3)) {
    const Values both = elements_of(*p[3], call.budget);
    MG_CHECK(both.size() == 2 && both[0].is_text() && both[1].is_text(),
             "tojson: separators must be two strings");
    style.between_items = both[0].bytes();
    style.behind_key = both[1].bytes();
  }
  return Value::text(to_json(*p[0], style, call.budget), &call.budget);
}

constexpr std::array kTextFilters = {
    NamedNative{"capitalize", mapped<to_capitalized>},
    NamedNative{"center", center},
    NamedNative{"d", default_value},
    NamedNative{"default", default_value},
    NamedNative{"e", mapped<escape_html>},
    NamedNative{"escape", mapped<escape_html>},
    NamedNative{"forceescape", mapped<escape_html>},
    NamedNative{"format", format},
    NamedNative{"indent", indent},
    NamedNative{"lower", mapped<to_lower>},
    NamedNative{"replace", replace},
    NamedNative{"safe", to_string},
    NamedNative{"string", to_string},
    NamedNative{"title", mapped<words_as_titles>},
    NamedNative{"tojson", json},
    NamedNative{"trim", trim},
    NamedNative{"truncate", truncate},
    NamedNative{"upper", mapped<to_upper>},
    NamedNative{"urlencode", urlencode},
    NamedNative{"wordcount", wordcount},
    NamedNative{"wordwrap", wordwrap},
    NamedNative{"xmlattr", xmlattr},
};

}  // namespace

std::string subject(Call& call) {
  MG_CHECK(!call.positional.empty(), "a filter without a value");
  std::string text = to_text(call.positional[0], call.budget);
  call.budget.spend_bytes(text.size());
  return text;
}

std::span<const NamedNative> text_filters() { return kTextFilters; }

}  // namespace megatron::jinja
