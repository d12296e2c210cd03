// Filters of texts and numbers, and the list of all.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/conversions.h"
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

template <std::string (*map)(std::string_view)>
Value mapped(Call& call) {
  const Parameters p(call, "filter", {"s"}, 1);
  return Value::text(map(subject(call)));
}

// Unlike str.title, an apostrophe does not end a word.
std::string words_as_titles(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const auto between = [&](size_t i) {
      const char32_t c = next_code_point(text, i);
      return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    };
    const size_t begin = at;
    next_code_point(text, at);
    const size_t first = at;
    if (!between(begin))
      while (at < text.size() && !between(at)) next_code_point(text, at);
    result +=
        to_upper(text.substr(begin, first - begin)) + to_lower(text.substr(first, at - first));
  }
  return result;
}

Value trim(Call& call) {
  const Parameters p(call, "trim", {"value", "chars"}, 1);
  return Value::text(strip_text(subject(call), p, true, true, call.budget));
}

Value replace(Call& call) {
  const Parameters p(call, "replace", {"s", "old", "new", "count"}, 3);
  const int64_t count = p.given_and_not_none(3) ? p.whole(3, -1) : -1;
  return Value::text(replace_all(subject(call), to_text(*p[1], call.budget),
                                 to_text(*p[2], call.budget), count, call.budget));
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
  const std::vector<std::string_view> lines = split_lines(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += '\n';
    if (i > 0 && (p.flag(3, false) || !lines[i].empty())) result += space;
    result += lines[i];
    call.budget.spend_bytes(space.size() + lines[i].size());
    call.budget.check_length(result.size());
  }
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

// %s, %d and %%; before the d a width, maybe with a 0 in front of it.
Value format(Call& call) {
  const std::string text = subject(call);
  MG_CHECK(call.keyword.empty(), "format: keyword arguments are not supported");
  std::string out;
  size_t next = 1;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      out += text[at];
      continue;
    }
    const size_t end = std::min(text.find_first_not_of("0123456789", at + 1), text.size() - 1);
    const std::string width = text.substr(at + 1, end - at - 1);
    const char type = text[end];
    at = end;
    if (type == '%' && width.empty()) {
      out += '%';
      continue;
    }
    MG_CHECK((type == 's' && width.empty()) || (type == 'd' && width.size() < 4),
             "format: '%{}{}' is not supported; supported are %s, %d, %5d, %05d and %%", width,
             type);
    MG_CHECK(next < call.positional.size(), "not enough arguments for format string");
    const Value& value = call.positional[next++];
    MG_CHECK(type == 's' || value.is_whole(), "%d format: a real number is required, not {}",
             value.type_name());
    const int least = width.empty() ? 0 : std::stoi(width);
    out += type == 's'       ? to_text(value, call.budget)
           : width[0] == '0' ? fmt::format("{:0{}}", value.as_whole(), least)
                             : fmt::format("{:{}}", value.as_whole(), least);
    call.budget.spend_bytes(out.size());
  }
  MG_CHECK(next == call.positional.size(), "not all arguments converted during string formatting");
  return Value::text(std::move(out));
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

std::string quote_url(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~/").find(c) != std::string_view::npos;
    plain ? out += c : out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

Value urlencode(Call& call) {
  const Parameters p(call, "urlencode", {"value"}, 1);
  MG_CHECK(!p[0]->is_dict() && !p[0]->is_sequence(),
           "urlencode: {} is not supported; give a "
           "string",
           p[0]->type_name());
  return Value::text(quote_url(subject(call)));
}

Value default_value(Call& call) {
  const Parameters p(call, "default", {"value", "default_value", "boolean"}, 1);
  const bool replace = p[0]->is_undefined() || (p.flag(2, false) && !p[0]->truth());
  if (!replace) return *p[0];
  return p.given(1) ? *p[1] : Value::text("");
}

std::optional<double> read_real(std::string_view text) {
  const std::string digits(strip_space(text, true, true));
  if (digits.empty() || digits.find_first_of("xX(pP") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  return end == digits.c_str() + digits.size() ? std::optional(number) : std::nullopt;
}

std::optional<Value> read_whole(std::string_view text) {
  text = strip_space(text, true, true);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  int64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  MG_CHECK(result.ec != std::errc::result_out_of_range, "the integer {} has more than 64 bits",
           text.substr(0, 40));
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return Value::integer(number);
}

std::optional<Value> truncated(double number) {
  if (std::isnan(number) || std::isinf(number)) return std::nullopt;
  MG_CHECK(std::fabs(number) < 9.2e18, "the integer {} has more than 64 bits", number);
  return Value::integer(static_cast<int64_t>(number));
}

Value to_int(Call& call) {
  const Parameters p(call, "int", {"value", "default"}, 1);
  check_defined(*p[0]);
  const Value initial = p.given(1) ? *p[1] : Value::integer(0);
  if (p[0]->is_whole()) return Value::integer(p[0]->as_whole());
  if (p[0]->is_real()) return truncated(p[0]->as_number()).value_or(initial);
  if (!p[0]->is_text()) return initial;
  if (const auto whole = read_whole(p[0]->bytes())) return *whole;
  const auto real = read_real(p[0]->bytes());
  return real ? truncated(*real).value_or(initial) : initial;
}

Value to_float(Call& call) {
  const Parameters p(call, "float", {"value", "default"}, 1);
  check_defined(*p[0]);
  if (p[0]->is_number()) return Value::real(p[0]->as_number());
  const auto real = p[0]->is_text() ? read_real(p[0]->bytes()) : std::nullopt;
  if (real) return Value::real(*real);
  return p.given(1) ? *p[1] : Value::real(0);
}

Value absolute(Call& call) {
  const Parameters p(call, "abs", {"x"}, 1);
  check_defined(*p[0]);
  MG_CHECK(p[0]->is_number(), "bad operand type for abs(): '{}'", p[0]->type_name());
  if (p[0]->is_real()) return Value::real(std::fabs(p[0]->as_number()));
  return p[0]->as_whole() < 0 ? negative(*p[0]) : Value::integer(p[0]->as_whole());
}

// To nearest at a decimal place, the exact half to even.
Value round_number(Call& call) {
  const Parameters p(call, "round", {"value", "precision"}, 1);
  check_defined(*p[0]);
  const int64_t places = p.whole(1, 0);
  MG_CHECK(p[0]->is_number(), "type {} doesn't define __round__ method", p[0]->type_name());
  MG_CHECK(places >= 0 && places <= 330, "round: a precision of {} must lie in [0, 330]", places);
  if (p[0]->is_whole()) return Value::integer(p[0]->as_whole());
  return Value::real(
      std::strtod(fmt::format("{:.{}f}", p[0]->as_number(), places).c_str(), nullptr));
}

Value to_string(Call& call) {
  const Parameters p(call, "string", {"object"}, 1);
  return p[0]->is_text() ? *p[0] : Value::text(to_text(*p[0], call.budget));
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
  return Value::text(to_json(*p[0], style, call.budget));
}

// ---- wordwrap: Python's textwrap.wrap. Lines are cut at spaces and behind hyphens within words; a
// longer word is cut.

using Letters = std::vector<char32_t>;

bool is_blank(char32_t c) { return c == ' ' || (c >= 0x09 && c <= 0x0D); }

// A letter of a word: \w without digits.
bool is_name_letter(char32_t c) { return is_word(c) && !is_decimal(c); }

bool is_word_or_mark(char32_t c) {
  return is_word(c) || (c < 0x80 && std::string_view("!\"'&.,?").find(static_cast<char>(c)) !=
                                        std::string_view::npos);
}

class Chunker {
 public:
  explicit Chunker(const Letters& letters) : letters_(letters) {}

  // The end of the chunk that begins at `begin`: a run of blanks, a dash between words, or a word
  // as far as it may be cut.
  size_t end_of_chunk(size_t begin) const {
    size_t end = begin;
    while (end < letters_.size() && is_blank(letters_[end])) ++end;
    if (end > begin) return end;
    while (at(end) == '-') ++end;
    if (end - begin >= 2 && begin > 0 && is_word_or_mark(letters_[begin - 1]) && is_word(at(end)))
      return end;
    for (end = begin + 1; end < letters_.size() && !is_blank(letters_[end]); ++end)
      if (hyphen_before(end, begin) || dash_follows(end)) return end;
    return end;
  }

 private:
  char32_t at(size_t i) const { return i < letters_.size() ? letters_[i] : U'\0'; }

  // A word may be cut at `end`, behind a hyphen: two letters (or a letter, a hyphen and a letter or
  // mark) stand in front of it, and two letters behind it.
  bool hyphen_before(size_t end, size_t begin) const {
    if (letters_[end - 1] != '-' || end < begin + 2) return false;
    const auto letter = [&](size_t i) { return is_name_letter(at(i)); };
    if (!letter(end) || !(letter(end + 1) || (at(end + 1) == '-' && letter(end + 2)))) return false;
    if (end >= 3 && letter(end - 2) && letter(end - 3)) return true;
    return end >= 4 && is_word_or_mark(at(end - 2)) && at(end - 3) == '-' && letter(end - 4);
  }

  // A dash of two hyphens or more begins at `end`, with words on both sides.
  bool dash_follows(size_t end) const {
    if (!is_word_or_mark(letters_[end - 1]) || at(end) != '-' || at(end + 1) != '-') return false;
    size_t behind = end;
    while (at(behind) == '-') ++behind;
    return is_word(at(behind));
  }

  const Letters& letters_;
};

bool all_blank(const Letters& letters) {
  return std::all_of(letters.begin(), letters.end(), is_space);
}

std::string encoded(const std::vector<Letters>& chunks) {
  std::string text;
  for (const Letters& chunk : chunks)
    for (const char32_t c : chunk) append_utf8(text, c);
  return text;
}

// Cuts what fits into `space` letters from a word that is longer than a line.
Letters cut_long(Letters& word, size_t space) {
  size_t end = space;
  if (word.size() > space) {
    const auto first = word.begin(), last = word.begin() + static_cast<std::ptrdiff_t>(space);
    const auto hyphen =
        std::find(std::make_reverse_iterator(last), std::make_reverse_iterator(first), U'-');
    const auto at = static_cast<size_t>(hyphen.base() - first);  // behind the hyphen
    const bool word_before =
        at > 1 && std::any_of(first, first + static_cast<std::ptrdiff_t>(at) - 1,
                              [](char32_t c) { return c != '-'; });
    if (word_before) end = at;
  }
  const auto cut = word.begin() + static_cast<std::ptrdiff_t>(end);
  Letters head(word.begin(), cut);
  word.erase(word.begin(), cut);
  return head;
}

std::vector<std::string> wrap_line(std::string_view line, int64_t width, Budget& budget) {
  budget.spend_bytes(line.size() * 16);
  const Letters letters = code_points(line);
  const Chunker chunker(letters);
  std::vector<Letters> chunks;
  for (size_t begin = 0; begin < letters.size();) {
    const size_t end = chunker.end_of_chunk(begin);
    chunks.emplace_back(letters.begin() + static_cast<std::ptrdiff_t>(begin),
                        letters.begin() + static_cast<std::ptrdiff_t>(end));
    begin = end;
  }
  std::vector<std::string> lines;
  for (size_t next = 0; next < chunks.size();) {
    std::vector<Letters> current;
    size_t length = 0;
    const auto limit = static_cast<size_t>(width);
    if (!lines.empty() && all_blank(chunks[next])) ++next;
    while (next < chunks.size() && length + chunks[next].size() <= limit) {
      length += chunks[next].size();
      current.push_back(std::move(chunks[next++]));
    }
    if (next < chunks.size() && chunks[next].size() > limit) {
      budget.spend_items(chunks[next].size());
      current.push_back(cut_long(chunks[next], limit - length));
    }
    if (!current.empty() && all_blank(current.back())) current.pop_back();
    if (!current.empty()) lines.push_back(encoded(current));
  }
  return lines;
}

Value wordwrap(Call& call) {
  const Parameters p(call, "wordwrap", {"s", "width"}, 1);
  const std::string text = to_text(*p[0], call.budget);
  const int64_t width = p.whole(1, 79);
  MG_CHECK(width > 0, "invalid width {} (must be > 0)", width);
  std::string result;
  const std::vector<std::string_view> lines = split_lines(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += '\n';
    const std::vector<std::string> pieces = wrap_line(lines[i], width, call.budget);
    for (size_t k = 0; k < pieces.size(); ++k) result += (k > 0 ? "\n" : "") + pieces[k];
    call.budget.check_length(result.size());
  }
  return Value::text(std::move(result));
}

constexpr std::array kFilters = {
    NamedNative{"abs", absolute},
    NamedNative{"capitalize", mapped<to_capitalized>},
    NamedNative{"d", default_value},
    NamedNative{"default", default_value},
    NamedNative{"e", mapped<escape_html>},
    NamedNative{"escape", mapped<escape_html>},
    NamedNative{"float", to_float},
    NamedNative{"format", format},
    NamedNative{"indent", indent},
    NamedNative{"int", to_int},
    NamedNative{"lower", mapped<to_lower>},
    NamedNative{"replace", replace},
    NamedNative{"round", round_number},
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
};

}  // namespace

Native find_in(std::span<const NamedNative> natives, std::string_view name) {
  for (const NamedNative& entry : natives)
    if (entry.name == name) return entry.native;
  return nullptr;
}

Native find_filter(std::string_view name) {
  if (const Native native = find_in(kFilters, name)) return native;
  if (const Native native = find_in(sequence_filters(), name)) return native;
  std::string names;
  for (const NamedNative& filter : kFilters) names += std::string(filter.name) + ", ";
  for (const NamedNative& filter : sequence_filters()) names += std::string(filter.name) + ", ";
  fail("filter '{}' is not supported; supported are {}", name, names.substr(0, names.size() - 2));
}

}  // namespace megatron::jinja
