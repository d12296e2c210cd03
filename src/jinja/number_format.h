// Numbers formatted as by Python's format() and %, before alignment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "jinja/budget.h"
#include "jinja/value.h"

namespace megatron::jinja {

// The parts of a formatted number.
struct Digits {
  std::string prefix;  // "-", "+0x"
  std::string whole;   // digits before the point
  std::string rest;    // point, further digits, exponent, "%"
};

struct NumberStyle {
  char type = '\0';  // as in Python's format specifications
  char sign = '-';   // '+', ' ': prefix of non-negative numbers
  bool alternate = false;
  bool no_negative_zero = false;
  std::optional<int64_t> precision;
};

// type: d, b, o, x or X; precision: minimum number of digits.
Digits integer_digits(const Value& whole, const NumberStyle& style, Budget& budget);
// type: e, E, f, F, g, G, %, n, or none for str() with the precision's number of digits.
Digits real_digits(double value, const NumberStyle& style, Budget& budget);

// Inserts separators between groups of digits and pads with leading zeros to `least` characters.
std::string grouped(std::string_view digits, char separator, size_t group, size_t least);

}  // namespace megatron::jinja
