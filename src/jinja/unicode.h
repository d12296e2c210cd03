// Text operations with the semantics of Python's str: whitespace, case. Case mapping and character
// classes are those of ICU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace megatron::jinja {

std::vector<char32_t> code_points(std::string_view text);
// Code points [begin, end); 0 <= begin.
std::string_view substring(std::string_view text, int64_t begin, int64_t end);

// Work like find and rfind of std::string, but always in linear time.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
size_t rfind_text(std::string_view text, std::string_view part);

bool is_space(char32_t c);                                          // str.isspace
bool is_printable(char32_t c);                                      // repr() does not escape it
bool is_word(char32_t c);                                           // \w of re
bool is_letter(char32_t c);                                         // str.isalpha
bool is_decimal(char32_t c);                                        // str.isdecimal
bool is_digit(char32_t c);                                          // str.isdigit
bool is_numeric(char32_t c);                                        // str.isnumeric
std::optional<char32_t> code_point_named(const std::string& name);  // the character of \N{...}
bool is_identifier(std::string_view text);
int decimal_value(char32_t c);  // value of a decimal digit; -1 if it is none
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);  // also true for upper case

// True if some letter is of the wanted case (is_upper, is_lower), and none of the other or in title
// case.
bool is_cased(std::string_view text, bool (*wanted)(char32_t), bool (*against)(char32_t));

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_folded(std::string_view text);       // str.casefold
std::string to_title(std::string_view text);        // str.title: each run of cased letters
std::string to_capitalized(std::string_view text);  // first letter title case, the rest lower

std::string_view strip_space(std::string_view text, bool left, bool right);
std::string_view strip_any(std::string_view text, std::string_view characters, bool left,
                           bool right);

}  // namespace megatron::jinja
