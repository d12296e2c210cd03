// Grammar rules for the texts of JSON values. There is no white space between tokens, except for at
// most one space after ',' and ':'.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inference/constraint/network.h"

namespace megatron::inference {

// Rules that are shared within a grammar; each is created on first use.
class JsonText {
 public:
  explicit JsonText(Network& network) : network_(network) {}

  // Adds ',' or ':' with an optional space.
  void add_separator(int32_t from, int32_t to, char separator);
  // Adds a string of at least `minimum` and at most `maximum` characters (-1: any number), with all
  // escapes, surrogates only in pairs. Characters are code points.
  void add_string(int32_t from, int32_t to, int64_t minimum = 0, int64_t maximum = -1);
  // Adds one of the texts.
  void add_texts(int32_t from, int32_t to, const std::vector<std::string>& texts);
  void add_key(int32_t from, int32_t to, std::string_view key);  // includes the colon
  // Adds a list of at least `minimum` and at most `maximum` items (-1: any number). rules: the
  // rules of each item; the last entry applies to all further items.
  void add_list(int32_t from, int32_t to, const std::vector<std::vector<int32_t>>& rules,
                int64_t minimum, int64_t maximum);
  // Adds any object, with any values of any depth. Keys may repeat.
  void add_any_object(int32_t from, int32_t to);
  const std::vector<int32_t>& any_values();  // rules that together match any value

 private:
  int32_t character();    // rule: one character between quotes
  int32_t string_rest();  // rule: the rest of a string after its first quote
  void add_character(int32_t from, int32_t to);

  Network& network_;
  int32_t character_ = -1, string_rest_ = -1;
  std::vector<int32_t> any_values_;  // scalars, arrays, objects
};

}  // namespace megatron::inference
