// The texts of JSON values. Between tokens there is no white space, but for at most one space
// behind ',' and ':'.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inference/constraint/network.h"

namespace megatron::inference {

// Rules that all of a grammar shares; each is made when it is first asked for.
class JsonText {
 public:
  explicit JsonText(Network& network) : network_(network) {}

  // ',' or ':' and maybe a space.
  void add_separator(int32_t from, int32_t to, char separator);
  // A string of at least `minimum` characters and at most `maximum` (-1: any number): all escapes,
  // surrogates in pairs only. Characters are code points.
  void add_string(int32_t from, int32_t to, int64_t minimum = 0, int64_t maximum = -1);
  // One of the texts.
  void add_texts(int32_t from, int32_t to, const std::vector<std::string>& texts);
  void add_key(int32_t from, int32_t to, std::string_view key);  // with its colon
  // A list of at least `minimum` and at most `maximum` items (-1: any number). rules: the rules of
  // each item; the last entry holds for all further items.
  void add_list(int32_t from, int32_t to, const std::vector<std::vector<int32_t>>& rules,
                int64_t minimum, int64_t maximum);
  // Any object, with any values of any depth. Keys may repeat.
  void add_any_object(int32_t from, int32_t to);
  const std::vector<int32_t>& any_values();  // rules that together have any value

 private:
  int32_t character();    // rule: one character between quotes
  int32_t string_rest();  // rule: a string behind its first quote
  void add_character(int32_t from, int32_t to);

  Network& network_;
  int32_t character_ = -1, string_rest_ = -1;
  std::vector<int32_t> any_values_;  // scalars, arrays, objects
};

}  // namespace megatron::inference
