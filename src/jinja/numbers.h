// Python's int and float: arithmetic, comparison, rounding, parsing and formatting.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "jinja/budget.h"
#include "jinja/operators.h"
#include "jinja/value.h"

namespace megatron::jinja {

// Both must be numbers.
Value calculate_numbers(Operator op, const Value& left, const Value& right, Budget& budget);
int compare_numbers(const Value& left, const Value& right);  // -1, 0, 1; 2: one is not a number

// round(): rounds to nearest at a decimal place; an exact half goes to even.
Value rounded(const Value& number, int64_t places);
Value absolute_value(const Value& number);
// int(): rounds towards zero. Returns none for infinities and NaN.
std::optional<Value> truncated(double number);
std::optional<Value> read_integer(std::string_view text, int64_t base);  // int(text, base)
std::optional<double> read_real(std::string_view text);                  // float(text)

std::string text_of_integer(const Value& whole, Budget& budget, int base = 10);
std::string repr_of_real(double value);  // the shortest text that reads back to the same value

}  // namespace megatron::jinja
