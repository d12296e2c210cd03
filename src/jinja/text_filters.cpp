#include <algorithm>
#include <array>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/conversions.h"
#include "jinja/filters.h"
#include "jinja/format.h"
#include "jinja/methods.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

// The value as a text, whose length is spent.
std::string subject(Call& call) {
  MG_CHECK(!call.positional.empty(), "a filter without a value");
  std::string text = to_text(call.positional[0], call.budget);
  call.budget.spend_bytes(text.size());
  return text;
}

bool is_markup(const Value& value) { return value.is_text() && value.as_text().markup; }

template <std::string (*map)(std::string_view)>
Value mapped(Call& call) {
  const Parameters p(call, "filter", {"s"}, 1);
  return Value::text(map(subject(call)), is_markup(*p[0]));
}

std::string words_as_titles(std::string_view text) {
  std::string result;
  size_t begin = 0;
  bool word = true;
  const auto finish = [&](size_t end) {
    if (end == begin) return;
    const std::string_view part = text.substr(begin, end - begin);
    size_t first = 0;
    next_code_point(part, first);
    result += to_upper(part.substr(0, first)) + to_lower(part.substr(first));
    begin = end;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = next_code_point(text, at);
    const bool letter = !(is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<');
    if (letter != word) finish(here);
    word = letter;
  }
  finish(text.size());
  return result;
}

Value trim(Call& call) {
  const Parameters p(call, "trim", {"value", "chars"}, 1);
  const std::string text = subject(call);
  if (!p.given_and_not_none(1)) return Value::text(std::string(strip_space(text, true, true)));
  call.budget.spend(static_cast<int64_t>(text.size() / 16 * (p.text(1).size() / 16)));
  return Value::text(std::string(strip_any(text, p.text(1), true, true)));
}

Value replace(Call& call) {
  const Parameters p(call, "replace", {"s", "old", "new", "count"}, 3);
  const int64_t count = p.given_and_not_none(3) ? p.whole(3, -1) : -1;
  return Value::text(replace_all(subject(call), to_text(*p[1], call.budget),
                                 to_text(*p[2], call.budget), count, call.budget));
}

Value indent(Call& call) {
  const Parameters p(call, "indent", {"s", "width", "first", "blank"}, 1);
  const std::string text = subject(call) + "\n";
  const int64_t width = p.given(1) && !p[1]->is_text() ? p.whole(1, 4) : 4;
  MG_CHECK(width <= 10000, "indent: a width of {} is too large", width);
  const std::string space =
      p.given(1) && p[1]->is_text()
          ? p.text(1)
          : std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  const bool first = p.flag(2, false), blank = p.flag(3, false);
  std::string result = first ? space : "";
  const std::vector<std::string_view> lines = split_lines(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += '\n';
    if (i > 0 && (blank || !lines[i].empty())) result += space;
    result += lines[i];
    call.budget.spend_bytes(space.size() + lines[i].size());
  }
  call.budget.check_length(result.size());
  return Value::text(std::move(result));
}

Value truncate(Call& call) {
  const Parameters p(call, "truncate", {"s", "length", "killwords", "end", "leeway"}, 1);
  const std::string text = subject(call), end = p.text(3, "...");
  const int64_t length = p.whole(1, 255), tail = count_code_points(end);
  const int64_t leeway = p.given_and_not_none(4) ? p.whole(4, 5) : 5;
  MG_CHECK(length >= tail, "expected length >= {}, got {}", tail, length);
  MG_CHECK(leeway >= 0, "expected leeway >= 0, got {}", leeway);
  if (count_code_points(text) - leeway <= length) return Value::text(text);
  std::string_view kept = substring(text, 0, length - tail);
  if (!p.flag(2, false)) kept = kept.substr(0, kept.rfind(' '));
  return Value::text(std::string(kept) + end);
}

Value wordwrap(Call& call) {
  const Parameters p(call, "wordwrap",
                     {"s", "width", "break_long_words", "wrapstring", "break_on_hyphens"}, 1);
  const std::string text = subject(call);
  const std::string between = p.given_and_not_none(3) ? p.text(3) : "\n";
  std::string result;
  const std::vector<std::string_view> lines = split_lines(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += between;
    const std::vector<std::string> pieces =
        wrap_line(lines[i], p.whole(1, 79), p.flag(2, true), p.flag(4, true), call.budget);
    for (size_t k = 0; k < pieces.size(); ++k) result += (k > 0 ? between : "") + pieces[k];
    call.budget.check_length(result.size());
  }
  call.budget.spend_bytes(result.size());
  return Value::text(std::move(result));
}

Value wordcount(Call& call) {
  const Parameters p(call, "wordcount", {"s"}, 1);
  int64_t words = 0;
  bool within = false;
  for (const char32_t c : code_points(subject(call))) {
    const bool word = is_word(c);
    words += word && !within;
    within = word;
  }
  return Value::integer(words);
}

Value center(Call& call) {
  const Parameters p(call, "center", {"value", "width"}, 1);
  Call inner{call.interpreter,
             call.budget,
             {Value::text(subject(call)), p.given(1) ? *p[1] : Value::integer(80)}};
  return find_text_method("center")(inner);
}

Value format(Call& call) {
  const Value text = Value::text(subject(call));
  Values rest(call.positional.begin() + 1, call.positional.end());
  MG_CHECK(rest.empty() || call.keyword.empty(),
           "can't handle positional and keyword arguments at the same time");
  if (call.keyword.empty()) return format_percent(text, Value::tuple(std::move(rest)), call.budget);
  std::vector<std::pair<Value, Value>> named;
  for (const auto& [name, value] : call.keyword) named.emplace_back(Value::text(name), value);
  return format_percent(text, Value::dict(std::move(named)), call.budget);
}

Value escape(Call& call) {
  const Parameters p(call, "escape", {"s"}, 1);
  return is_markup(*p[0]) ? *p[0] : Value::text(escape_html(subject(call)), true);
}

Value force_escape(Call& call) {
  const Parameters p(call, "forceescape", {"value"}, 1);
  return Value::text(escape_html(subject(call)), true);
}

Value safe(Call& call) {
  const Parameters p(call, "safe", {"value"}, 1);
  return Value::text(subject(call), true);
}

std::string quote_url(std::string_view text, bool query) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos;
    if (plain || (c == '/' && !query)) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

Value urlencode(Call& call) {
  const Parameters p(call, "urlencode", {"value"}, 1);
  const Value& value = *p[0];
  if (!value.is_dict() && !value.is_sequence()) return Value::text(quote_url(subject(call), false));
  std::string result;
  const auto add = [&](const Value& key, const Value& member) {
    if (!result.empty()) result += '&';
    result += quote_url(to_text(key, call.budget), true) + "=" +
              quote_url(to_text(member, call.budget), true);
    call.budget.check_length(result.size());
  };
  if (value.is_dict()) {
    for (const auto& [key, member] : value.as_dict().members) add(key, member);
  } else {
    for (const Value& pair : elements_of(value, call.budget)) {
      const Values both = elements_of(pair, call.budget);
      MG_CHECK(both.size() == 2, "urlencode: an element is no pair");
      add(both[0], both[1]);
    }
  }
  call.budget.spend_bytes(result.size());
  return Value::text(std::move(result));
}

constexpr std::array kFilters = {
    NamedNative{"upper", mapped<to_upper>},
    NamedNative{"lower", mapped<to_lower>},
    NamedNative{"title", mapped<words_as_titles>},
    NamedNative{"capitalize", mapped<to_capitalized>},
    NamedNative{"trim", trim},
    NamedNative{"replace", replace},
    NamedNative{"indent", indent},
    NamedNative{"truncate", truncate},
    NamedNative{"wordwrap", wordwrap},
    NamedNative{"wordcount", wordcount},
    NamedNative{"center", center},
    NamedNative{"format", format},
    NamedNative{"escape", escape},
    NamedNative{"e", escape},
    NamedNative{"forceescape", force_escape},
    NamedNative{"safe", safe},
    NamedNative{"urlencode", urlencode},
};

}  // namespace

std::span<const NamedNative> text_filters() { return kFilters; }

}  // namespace megatron::jinja
