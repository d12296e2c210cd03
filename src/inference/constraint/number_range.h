// Grammar of JSON numbers within bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "inference/constraint/network.h"

namespace megatron::inference {

// A decimal number: a sign and digits, of which `places` are after the decimal point.
struct Decimal {
  bool negative = false;
  std::string digits = "0";  // at least one digit before the point; no redundant zeros
  int64_t places = 0;

  // Decimal digits of the shortest text that parses back to the same number.
  explicit Decimal(const Json& number);
  Decimal() = default;
  bool is_zero() const { return digits == "0"; }
  // Equal numbers have equal texts.
  std::string text() const;
};

struct NumberRange {
  struct Bound {
    Decimal value;
    bool exclusive = false;
  };
  std::optional<Bound> minimum, maximum;
  bool integer = true;
  int64_t divisor = 1;       // numbers are multiples of it; above 1 for integers only
  int64_t most_places = 15;  // digits after the point
};

// Adds integers of up to 18 digits, or up to 20 if a bound has as many; other numbers have no
// exponent and up to 15 digits, so that different numbers are different doubles. Adds nothing if no
// number lies within the bounds.
void add_number(Network& network, int32_t from, int32_t to, const NumberRange& range);

// Adds any number whose double is finite: up to 18 digits before and after the decimal point, and
// an exponent of one or two digits.
void add_any_number(Network& network, int32_t from, int32_t to);

}  // namespace megatron::inference
