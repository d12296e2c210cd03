// Values as text: Python's str() and repr(), and json.dumps.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "jinja/budget.h"
#include "jinja/value.h"

namespace megatron::jinja {

std::string to_text(const Value& value, Budget& budget);  // str()
std::string repr(const Value& value, Budget& budget);
std::string repr_of_text(std::string_view text);
// Writes \x, \u and \U for characters that are not ASCII.
std::string ascii(const std::string& shown);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // none: a single line
  std::string between_items;          // usually "," with an indent, else ", "
  std::string behind_key = ": ";
  bool sort_keys = false;
};
// Throws Error, worded as in Python's json module, for values that JSON cannot represent.
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace megatron::jinja
