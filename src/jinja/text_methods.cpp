// Methods of Python's str. Positions and widths count code points.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "jinja/budget.h"
#include "jinja/conversions.h"
#include "jinja/format.h"
#include "jinja/methods.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

Value text_of(std::string_view text) { return Value::text(std::string(text)); }

const std::string& self(Call& call) {
  call.budget.spend_bytes(call.positional[0].bytes().size());
  return call.positional[0].bytes();
}

template <std::string (*map)(std::string_view)>
Value mapped(Call& call) {
  const Parameters p(call, "str.method", {"self"}, 1);
  return Value::text(map(self(call)), p[0]->as_text().markup);
}

template <bool left, bool right>
Value strip(Call& call) {
  const Parameters p(call, "strip", {"self", "chars"}, 1);
  const std::string& text = self(call);
  if (!p.given_and_not_none(1)) return text_of(strip_space(text, left, right));
  call.budget.spend(
      static_cast<int64_t>(std::min(text.size(), size_t{1} << 20) / 16 * p.text(1).size() / 16));
  return text_of(strip_any(text, p.text(1), left, right));
}

Value list_of(const std::vector<std::string_view>& parts, Budget& budget) {
  budget.spend(static_cast<int64_t>(parts.size()));
  Values elements;
  for (const std::string_view part : parts) elements.push_back(text_of(part));
  return Value::list(std::move(elements));
}

// The byte of `text` where its first word ends, or where its last one begins.
size_t word_border(std::string_view text, bool right) {
  size_t border = right ? 0 : text.size();
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    if (!is_space(next_code_point(text, at))) continue;
    if (!right) return here;
    border = at;
  }
  return border;
}

// At most `most` cuts at runs of whitespace, from the left or from the right.
std::vector<std::string_view> split_at_space(std::string_view text, int64_t most, bool right) {
  std::vector<std::string_view> parts;
  text = strip_space(text, !right, right);
  while (!text.empty() && static_cast<int64_t>(parts.size()) < most) {
    const size_t border = word_border(text, right);
    parts.push_back(right ? text.substr(border) : text.substr(0, border));
    text = strip_space(right ? text.substr(0, border) : text.substr(border), !right, right);
  }
  if (!text.empty()) parts.push_back(text);
  if (right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       int64_t most, bool right) {
  std::vector<std::string_view> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
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
  const Parameters p(call, "split", {"self", "sep", "maxsplit"}, 1);
  const int64_t most = p.whole(2, -1);
  const std::string& text = self(call);
  if (!p.given_and_not_none(1)) {
    if (right && most >= 0) {
      call.budget.spend(std::min(most, p[0]->as_text().length) *
                        static_cast<int64_t>(text.size() / 16));
    }
    return list_of(most < 0 ? split_words(text) : split_at_space(text, most, right), call.budget);
  }
  MG_CHECK(!p.text(1).empty(), "empty separator");
  return list_of(split_at(text, p.text(1), most, right), call.budget);
}

Value splitlines(Call& call) {
  const Parameters p(call, "splitlines", {"self", "keepends"}, 1);
  return list_of(split_lines(self(call), p.flag(1, false)), call.budget);
}

template <bool right>
Value partition(Call& call) {
  const Parameters p(call, "partition", {"self", "sep"}, 2);
  const std::string_view text = self(call), separator = p.text(1);
  MG_CHECK(!separator.empty(), "empty separator");
  const size_t at = right ? text.rfind(separator) : text.find(separator);
  if (at == std::string_view::npos) {
    const Value empty = text_of("");
    return right ? Value::tuple({empty, empty, *p[0]}) : Value::tuple({*p[0], empty, empty});
  }
  return Value::tuple(
      {text_of(text.substr(0, at)), *p[1], text_of(text.substr(at + separator.size()))});
}

// The part of a text that `start` and `end` choose, and the code point it begins at.
struct Part {
  std::string_view text;
  int64_t begin = 0;
  bool within = true;  // `start` is not behind the end
};

Part part_of(const Parameters& p, size_t start, size_t end) {
  const Text& text = p[0]->as_text();
  const auto place = [&](size_t i, int64_t initial) {
    const int64_t index = p.given_and_not_none(i) ? p.whole(i, 0) : initial;
    return index < 0 ? std::max<int64_t>(0, index < -text.length ? 0 : index + text.length) : index;
  };
  const int64_t begin = place(start, 0);
  const int64_t behind = std::min(place(end, text.length), text.length);
  return {substring(text.bytes, begin, behind), begin, begin <= text.length && begin <= behind};
}

template <bool right, bool must>
Value find(Call& call) {
  const Parameters p(call, "find", {"self", "sub", "start", "end"}, 2);
  self(call);
  const Part part = part_of(p, 2, 3);
  const size_t at = !part.within ? std::string_view::npos
                    : right      ? part.text.rfind(p.text(1))
                                 : part.text.find(p.text(1));
  MG_CHECK(!must || at != std::string_view::npos, "substring not found");
  if (at == std::string_view::npos) return Value::integer(-1);
  return Value::integer(part.begin + count_code_points(part.text.substr(0, at)));
}

Value count(Call& call) {
  const Parameters p(call, "count", {"self", "sub", "start", "end"}, 2);
  self(call);
  const Part part = part_of(p, 2, 3);
  const std::string& sub = p.text(1);
  if (!part.within) return Value::integer(0);
  if (sub.empty()) return Value::integer(count_code_points(part.text) + 1);
  int64_t found = 0;
  for (size_t at = part.text.find(sub); at != std::string_view::npos;
       at = part.text.find(sub, at + sub.size())) {
    ++found;
  }
  return Value::integer(found);
}

template <bool at_end>
Value affix(Call& call) {
  const char* name = at_end ? "endswith" : "startswith";
  const Parameters p(call, name, {"self", "affix", "start", "end"}, 2);
  const Part part = part_of(p, 2, 3);
  const auto matches = [&](const Value& value) {
    MG_CHECK(value.is_text(), "{} first arg must be str or a tuple of str, not {}", name,
             value.type_name());
    const std::string& affix = value.bytes();
    if (!part.within || affix.size() > part.text.size()) return false;
    return part.text.substr(at_end ? part.text.size() - affix.size() : 0, affix.size()) == affix;
  };
  if (!p[1]->is_form(Sequence::Form::tuple)) return Value::boolean(matches(*p[1]));
  const Values& choices = p[1]->as_sequence().elements;
  return Value::boolean(std::any_of(choices.begin(), choices.end(), matches));
}

template <bool at_end>
Value remove_affix(Call& call) {
  const Parameters p(call, "removeprefix", {"self", "affix"}, 2);
  const std::string_view text = self(call), affix = p.text(1);
  if (affix.size() > text.size()) return *p[0];
  const size_t rest = text.size() - affix.size();
  if (text.substr(at_end ? rest : 0, affix.size()) != affix) return *p[0];
  return text_of(text.substr(at_end ? 0 : affix.size(), rest));
}

Value replace(Call& call) {
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
  }
  call.budget.spend_bytes(joined.size());
  return Value::text(std::move(joined));
}

std::string filled(std::string_view text, int64_t left, int64_t right, std::string_view fill,
                   Budget& budget) {
  left = std::max<int64_t>(left, 0);
  right = std::max<int64_t>(right, 0);
  MG_CHECK(std::max(left, right) < (int64_t{1} << 40), "a width of {} is too large",
           std::max(left, right));
  budget.spend_bytes(static_cast<size_t>(left + right) * fill.size() + text.size());
  std::string result;
  for (int64_t i = 0; i < left; ++i) result += fill;
  result += text;
  for (int64_t i = 0; i < right; ++i) result += fill;
  return result;
}

enum class Side { left, right, middle };

template <Side side>
Value justify(Call& call) {
  const Parameters p(call, "justify", {"self", "width", "fillchar"}, 2);
  const std::string fill = p.text(2, " ");
  MG_CHECK(count_code_points(fill) == 1, "The fill character must be exactly one character long");
  const int64_t width = p.whole(1, 0), space = std::max<int64_t>(0, width - p[0]->as_text().length);
  const int64_t before = side == Side::left    ? 0
                         : side == Side::right ? space
                                               : space / 2 + (space & width & 1);
  return Value::text(filled(self(call), before, space - before, fill, call.budget));
}

Value zfill(Call& call) {
  const Parameters p(call, "zfill", {"self", "width"}, 2);
  const std::string& text = self(call);
  const int64_t zeros = p.whole(1, 0) - p[0]->as_text().length;
  const bool sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  const std::string padded = filled("", zeros, 0, "0", call.budget);
  return Value::text(text.substr(0, sign) + padded + text.substr(sign));
}

Value expandtabs(Call& call) {
  const Parameters p(call, "expandtabs", {"self", "tabsize"}, 1);
  const int64_t size = std::clamp<int64_t>(p.whole(1, 8), 0, 1 << 20);
  std::string result;
  int64_t column = 0;
  for (const char c : self(call)) {
    const bool lead = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      call.budget.spend_bytes(static_cast<size_t>(spaces));
      result.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    } else {
      result += c;
      column = c == '\n' || c == '\r' ? 0 : column + lead;
    }
  }
  return Value::text(std::move(result));
}

template <bool (*holds)(char32_t)>
Value all_are(Call& call) {
  const Parameters p(call, "str.method", {"self"}, 1);
  const std::vector<char32_t> letters = code_points(self(call));
  return Value::boolean(!letters.empty() && std::all_of(letters.begin(), letters.end(), holds));
}

bool is_alphanumeric(char32_t c) { return is_letter(c) || is_numeric(c); }

// Some letter is of the wanted case and none of the other.
template <bool (*wanted)(char32_t), bool (*other)(char32_t)>
Value cased(Call& call) {
  const Parameters p(call, "str.method", {"self"}, 1);
  bool found = false;
  for (const char32_t c : code_points(self(call))) {
    if (other(c) || is_title(c)) return Value::boolean(false);
    found = found || wanted(c);
  }
  return Value::boolean(found);
}

Value istitle(Call& call) {
  const Parameters p(call, "istitle", {"self"}, 1);
  bool found = false, within = false;
  for (const char32_t c : code_points(self(call))) {
    const bool capital = is_upper(c) || is_title(c), small = is_lower(c);
    if ((capital && within) || (small && !within)) return Value::boolean(false);
    within = capital || small;
    found = found || within;
  }
  return Value::boolean(found);
}

Value isascii(Call& call) {
  return Value::boolean(Parameters(call, "isascii", {"self"}, 1)[0]->as_text().ascii());
}

Value format(Call& call) { return format_braces(call); }

struct Named {
  std::string_view name;
  Native native;
};

constexpr std::array kMethods = {
    Named{"capitalize", mapped<to_capitalized>},
    Named{"casefold", mapped<to_casefold>},
    Named{"center", justify<Side::middle>},
    Named{"count", count},
    Named{"endswith", affix<true>},
    Named{"expandtabs", expandtabs},
    Named{"find", find<false, false>},
    Named{"format", format},
    Named{"index", find<false, true>},
    Named{"isalnum", all_are<is_alphanumeric>},
    Named{"isalpha", all_are<is_letter>},
    Named{"isascii", isascii},
    Named{"isdecimal", all_are<is_decimal>},
    Named{"isdigit", all_are<is_digit>},
    Named{"islower", cased<is_lower, is_upper>},
    Named{"isnumeric", all_are<is_numeric>},
    Named{"isspace", all_are<is_space>},
    Named{"istitle", istitle},
    Named{"isupper", cased<is_upper, is_lower>},
    Named{"join", join},
    Named{"ljust", justify<Side::left>},
    Named{"lower", mapped<to_lower>},
    Named{"lstrip", strip<true, false>},
    Named{"partition", partition<false>},
    Named{"removeprefix", remove_affix<false>},
    Named{"removesuffix", remove_affix<true>},
    Named{"replace", replace},
    Named{"rfind", find<true, false>},
    Named{"rindex", find<true, true>},
    Named{"rjust", justify<Side::right>},
    Named{"rpartition", partition<true>},
    Named{"rsplit", split<true>},
    Named{"rstrip", strip<false, true>},
    Named{"split", split<false>},
    Named{"splitlines", splitlines},
    Named{"startswith", affix<false>},
    Named{"strip", strip<true, true>},
    Named{"swapcase", mapped<to_swapped_case>},
    Named{"title", mapped<to_title>},
    Named{"upper", mapped<to_upper>},
    Named{"zfill", zfill},
};

}  // namespace

Native find_text_method(std::string_view name) {
  for (const Named& method : kMethods)
    if (method.name == name) return method.native;
  return nullptr;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_code_point(text, at);
    const bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                        c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
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
    if (from.empty()) {  // in front of each letter, and at the end
      if (done > 0) next_code_point(text, behind);
      result += text.substr(at, behind - at);
      result += to;
    } else {
      result += text.substr(at, found - at);
      result += to;
    }
    budget.spend_bytes(to.size() + (behind - at));
    budget.check_length(result.size());
    at = behind;
  }
  result += text.substr(at);
  budget.spend_bytes(result.size());
  return result;
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  bool within = false;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const bool space = is_space(next_code_point(text, at));
    if (within && space) words.push_back(text.substr(begin, here - begin));
    if (!within && !space) begin = here;
    within = !space;
  }
  if (within) words.push_back(text.substr(begin));
  return words;
}

}  // namespace megatron::jinja
