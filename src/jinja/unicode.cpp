#include "jinja/unicode.h"

#include <unicode/ucasemap.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace megatron::jinja {
namespace {

struct CloseMap {
  void operator()(UCaseMap* map) const { ucasemap_close(map); }
};

using MapFunction = int32_t (*)(const UCaseMap*, char*, int32_t, const char*, int32_t, UErrorCode*);

std::string mapped(std::string_view text, MapFunction function, uint32_t options = 0) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<UCaseMap, CloseMap> map(ucasemap_open("", options, &status));
  MG_CHECK(U_SUCCESS(status), "ICU has no case mapping: {}", u_errorName(status));
  std::string result(text.size() * 3 + 16, '\0');  // upper bound of any letter's growth
  const auto size = [](const std::string_view s) { return static_cast<int32_t>(s.size()); };
  const int32_t length =
      function(map.get(), result.data(), size(result), text.data(), size(text), &status);
  MG_CHECK(U_SUCCESS(status), "ICU cannot map the case of a string: {}", u_errorName(status));
  result.resize(static_cast<size_t>(length));
  return result;
}

std::string title_letter(std::string_view letter) {
  const auto to_title = [](const UCaseMap* map, char* out, int32_t capacity, const char* in,
                           int32_t size, UErrorCode* status) {
    // ICU takes the map as not const because it may open a break iterator; the options forbid it.
    return ucasemap_utf8ToTitle(const_cast<UCaseMap*>(map), out, capacity, in, size, status);
  };
  return mapped(letter, to_title, U_TITLECASE_WHOLE_STRING | U_TITLECASE_NO_BREAK_ADJUSTMENT);
}

bool has_case(char32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }

// The lower case of a word without its first letter; the whole word decides on a final sigma.
std::string lower_rest(std::string_view word) {
  size_t at = 0;
  next_character(word, at);
  return to_lower(word).substr(to_lower(word.substr(0, at)).size());
}

template <class Drop>
std::string_view strip(std::string_view text, bool left, bool right, Drop drop) {
  while (left && !text.empty()) {
    size_t at = 0;
    if (!drop(next_character(text, at))) break;
    text.remove_prefix(at);
  }
  while (right && !text.empty()) {
    const size_t begin = character_start_before(text, text.size());
    size_t at = begin;
    if (!drop(next_character(text, at))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

}  // namespace

std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> result;
  for (size_t at = 0; at < text.size();) result.push_back(next_character(text, at));
  return result;
}

std::string_view substring(std::string_view text, int64_t begin, int64_t end) {
  if (end <= begin) return {};
  const size_t first = character_offset(text, begin);
  return text.substr(first, character_offset(text.substr(first), end - begin));
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (part.empty()) return from <= text.size() ? from : std::string_view::npos;
  if (from >= text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t rfind_text(std::string_view text, std::string_view part) {
  const std::string backwards(text.rbegin(), text.rend()), wanted(part.rbegin(), part.rend());
  const size_t found = find_text(backwards, wanted);
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

bool is_space(char32_t c) {
  return u_isUWhiteSpace(static_cast<UChar32>(c)) || (c >= 0x1C && c <= 0x1F);
}

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  constexpr uint32_t kHidden = U_GC_C_MASK | U_GC_Z_MASK;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & kHidden) == 0;
}

bool is_word(char32_t c) { return c == '_' || is_letter(c) || is_numeric(c); }

bool is_numeric(char32_t c) {
  return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}

bool is_digit(char32_t c) {
  const int type = u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}

std::optional<char32_t> code_point_named(const std::string& name) {
  for (const UCharNameChoice choice : {U_UNICODE_CHAR_NAME, U_CHAR_NAME_ALIAS}) {
    UErrorCode status = U_ZERO_ERROR;
    const UChar32 letter = u_charFromName(choice, name.c_str(), &status);
    if (U_SUCCESS(status)) return static_cast<char32_t>(letter);
  }
  return std::nullopt;
}

bool is_identifier(std::string_view text) {
  bool first = true;
  for (size_t at = 0; at < text.size(); first = false) {
    const char32_t c = next_character(text, at);
    const UProperty property = first ? UCHAR_XID_START : UCHAR_XID_CONTINUE;
    if (c != '_' && !u_hasBinaryProperty(static_cast<UChar32>(c), property)) return false;
  }
  return !text.empty();
}

bool is_letter(char32_t c) { return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0; }

bool is_decimal(char32_t c) { return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_ND_MASK) != 0; }
int decimal_value(char32_t c) {
  return is_decimal(c) ? u_charDigitValue(static_cast<UChar32>(c)) : -1;
}
bool is_upper(char32_t c) { return u_isUUppercase(static_cast<UChar32>(c)); }
bool is_lower(char32_t c) { return u_isULowercase(static_cast<UChar32>(c)); }
bool is_title(char32_t c) { return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_LT_MASK) != 0; }

bool is_cased(std::string_view text, bool (*wanted)(char32_t), bool (*against)(char32_t)) {
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    if (against(c) || is_title(c)) return false;
    found = found || wanted(c);
  }
  return found;
}

std::string to_folded(std::string_view text) { return mapped(text, ucasemap_utf8FoldCase); }

std::string to_upper(std::string_view text) { return mapped(text, ucasemap_utf8ToUpper); }

std::string to_lower(std::string_view text) { return mapped(text, ucasemap_utf8ToLower); }

std::string to_title(std::string_view text) {
  std::string result;
  size_t word = 0;
  bool within = false;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_character(text, at);
    const bool cased = has_case(c);
    if (within && cased) continue;
    if (within) result += lower_rest(text.substr(word, begin - word));
    const std::string_view letter = text.substr(begin, at - begin);
    result += cased ? title_letter(letter) : std::string(letter);
    within = cased;
    word = begin;
  }
  if (within) result += lower_rest(text.substr(word));
  return result;
}

std::string to_capitalized(std::string_view text) {
  if (text.empty()) return {};
  size_t at = 0;
  next_character(text, at);
  return title_letter(text.substr(0, at)) + lower_rest(text);
}

std::string_view strip_space(std::string_view text, bool left, bool right) {
  return strip(text, left, right, is_space);
}

std::string_view strip_any(std::string_view text, std::string_view characters, bool left,
                           bool right) {
  const std::vector<char32_t> set = code_points(characters);
  return strip(text, left, right,
               [&](char32_t c) { return std::find(set.begin(), set.end(), c) != set.end(); });
}

}  // namespace megatron::jinja
