// Numbers of JSON within bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "inference/constraint/network.h"

namespace megatron::inference {

// A decimal number: sign * (digits with `places` of them behind the point).
struct Decimal {
  bool negative = false;
  std::string digits = "0";  // at least one before the point; no needless zeros at either end
  int64_t places = 0;

  // Of the shortest text that reads back to the same number.
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
  int64_t most_places = 15;  // digits behind the point
};

// Integers of up to 18 digits, or of up to 20 where a bound has as many; other numbers without an
// exponent and of up to 15 digits, so that two of them are two doubles. Adds nothing if no number
// lies within the bounds.
void add_number(Network& network, int32_t from, int32_t to, const NumberRange& range);

// Any number whose double is finite: up to 18 digits before the point and behind it, an exponent of
// one or two digits.
void add_any_number(Network& network, int32_t from, int32_t to);

}  // namespace megatron::inference
