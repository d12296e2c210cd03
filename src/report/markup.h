// Text and numbers formatted for the page. All text in a log is untrusted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::report {

// Returns the text as valid UTF-8 without control characters: invalid bytes become U+FFFD, control
// characters other than tab and line feed their pictures (U+2400 ...).
std::string printable(std::string_view text);

// Escapes text for use between tags or in a quoted attribute.
std::string html(std::string_view text);

// A JSON string that is safe in a script element: nothing in it ends the element or opens a
// comment.
std::string script_string(std::string_view text);

// Numbers of a JSON array with `digits` significant digits; null for values that are not finite. A
// single number if all are equal, null if there are none.
std::string script_numbers(const std::vector<double>& values, int digits);

std::string grouped(int64_t value);             // "1,234,567"
std::string count(double value);                // "812", "16.4M", "8.19B"; "–" if not finite
std::string duration(double seconds);           // "42s", "3m05s", "2h07m", "18d09h"
std::string percent(double share);              // "41.3 %"; "–" if not finite
std::string flops(double per_second);           // "1.24 TFLOP/s"
std::string moment(double seconds_since_1970);  // "2026-11-21 09:25:07" (UTC)

}  // namespace megatron::report
