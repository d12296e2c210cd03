#include "inference/constraint/json_text.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/json.h"
#include "inference/constraint/characters.h"
#include "inference/constraint/number_range.h"

namespace megatron::inference {
namespace {

using tokenizers::CharacterSet;

// Hexadecimal digits in [first, last], both cases of letters.
void add_hexadecimal(Network& network, int32_t from, int32_t to, int first, int last) {
  for (int digit = first; digit <= last; ++digit) {
    for (const char base : {'a', 'A'}) {
      const auto byte = static_cast<uint8_t>(digit < 10 ? '0' + digit : base + digit - 10);
      network.add_bytes(from, to, byte, byte);
      if (digit < 10) break;
    }
  }
}

// Two hexadecimal digits.
void add_low_byte(Network& network, int32_t from, int32_t to) {
  const int32_t middle = network.add_state();
  add_hexadecimal(network, from, middle, 0, 15);
  add_hexadecimal(network, middle, to, 0, 15);
}

}  // namespace

void JsonText::add_separator(int32_t from, int32_t to, char separator) {
  const int32_t behind = network_.add_state();
  network_.add_bytes(from, behind, static_cast<uint8_t>(separator),
                     static_cast<uint8_t>(separator));
  network_.add_empty(behind, to);
  network_.add_bytes(behind, to, ' ', ' ');
}

void JsonText::add_character(int32_t from, int32_t to) {
  CharacterSet plain(0x20, CharacterSet::kLast);
  CharacterSet escaped('"', '"');
  escaped.add('\\', '\\');
  escaped.complement();
  plain.intersect(escaped);
  add_characters(network_, from, to, plain, Spelling::utf8);

  const int32_t escape = network_.add_state(), first = network_.add_state(),
                second = network_.add_state(), last = network_.add_state();
  network_.add_bytes(from, escape, '\\', '\\');
  for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'})
    network_.add_bytes(escape, to, static_cast<uint8_t>(c), static_cast<uint8_t>(c));
  network_.add_bytes(escape, first, 'u', 'u');
  add_low_byte(network_, last, to);
  add_hexadecimal(network_, first, second, 0, 12);
  add_hexadecimal(network_, first, second, 14, 15);
  add_hexadecimal(network_, second, last, 0, 15);
  // After D: a second digit below 8 is a character; from 8 on, the first half of a surrogate pair.
  const int32_t surrogate = network_.add_state(), half = network_.add_state(),
                behind = network_.add_state(), third = network_.add_state(),
                fourth = network_.add_state();
  add_hexadecimal(network_, first, surrogate, 13, 13);
  add_hexadecimal(network_, surrogate, last, 0, 7);
  add_hexadecimal(network_, surrogate, half, 8, 11);
  add_low_byte(network_, half, behind);
  network_.add_text(behind, third, "\\u");
  add_hexadecimal(network_, third, fourth, 13, 13);
  add_hexadecimal(network_, fourth, last, 12, 15);
}

int32_t JsonText::character() {
  if (character_ >= 0) return character_;
  character_ = network_.add_rule();
  const Network::Rule rule = network_.rules()[static_cast<size_t>(character_)];
  add_character(rule.start, rule.final);
  return character_;
}

int32_t JsonText::string_rest() {
  if (string_rest_ >= 0) return string_rest_;
  string_rest_ = network_.add_rule();
  const Network::Rule rule = network_.rules()[static_cast<size_t>(string_rest_)];
  add_character(rule.start, rule.start);
  network_.add_bytes(rule.start, rule.final, '"', '"');
  return string_rest_;
}

void JsonText::add_string(int32_t from, int32_t to, int64_t minimum, int64_t maximum) {
  int32_t at = network_.add_state();
  network_.add_bytes(from, at, '"', '"');
  for (int64_t i = 0; i < minimum || i < maximum; ++i) {
    if (i >= minimum) network_.add_bytes(at, to, '"', '"');
    const int32_t next = network_.add_state();
    network_.add_call(at, next, character());
    at = next;
  }
  if (maximum < 0) {
    network_.add_call(at, to, string_rest());
  } else {
    network_.add_bytes(at, to, '"', '"');
  }
}

void JsonText::add_texts(int32_t from, int32_t to, const std::vector<std::string>& texts) {
  std::map<std::pair<int32_t, char>, int32_t> tree;
  for (const std::string& text : texts) {
    int32_t at = from;
    for (const char c : text) {
      const auto [found, is_new] = tree.try_emplace({at, c}, 0);
      if (is_new) {
        found->second = network_.add_state();
        network_.add_text(at, found->second, {&c, 1});
      }
      at = found->second;
    }
    network_.add_empty(at, to);
  }
}

void JsonText::add_key(int32_t from, int32_t to, std::string_view key) {
  const int32_t behind = network_.add_state();
  network_.add_text(from, behind, Json(key).dump());
  add_separator(behind, to, ':');
}

void JsonText::add_list(int32_t from, int32_t to, const std::vector<std::vector<int32_t>>& rules,
                        int64_t minimum, int64_t maximum) {
  const auto listed = std::ssize(rules) - 1;
  int32_t before = network_.add_state();
  network_.add_bytes(from, before, '[', '[');
  if (minimum == 0) network_.add_bytes(before, to, ']', ']');
  if (maximum == 0) return;
  for (int64_t count = 1;; ++count) {
    const int32_t behind = network_.add_state();
    for (const int32_t rule : rules[static_cast<size_t>(std::min(count - 1, listed))])
      network_.add_call(before, behind, rule);
    if (count >= minimum) network_.add_bytes(behind, to, ']', ']');
    if (count == maximum) return;
    const bool repeats = maximum < 0 && count >= minimum && count > std::max<int64_t>(listed, 1);
    const int32_t next = repeats ? before : network_.add_state();
    add_separator(behind, next, ',');
    if (repeats) return;
    before = next;
  }
}

const std::vector<int32_t>& JsonText::any_values() {
  if (!any_values_.empty()) return any_values_;
  const int32_t scalar = network_.add_rule(), array = network_.add_rule(),
                object = network_.add_rule();
  any_values_ = {scalar, array, object};
  const auto rule = [&](int32_t index) { return network_.rules()[static_cast<size_t>(index)]; };
  const Network::Rule of_scalar = rule(scalar), of_array = rule(array), of_object = rule(object);
  for (const char* text : {"null", "true", "false"})
    network_.add_text(of_scalar.start, of_scalar.final, text);
  add_string(of_scalar.start, of_scalar.final);
  add_any_number(network_, of_scalar.start, of_scalar.final);
  add_list(of_array.start, of_array.final, {any_values_}, 0, -1);
  add_any_object(of_object.start, of_object.final);
  return any_values_;
}

void JsonText::add_any_object(int32_t from, int32_t to) {
  const int32_t open = network_.add_state(), key = network_.add_state(),
                behind_key = network_.add_state(), value = network_.add_state(),
                behind = network_.add_state();
  network_.add_bytes(from, open, '{', '{');
  network_.add_bytes(open, to, '}', '}');
  network_.add_empty(open, key);
  add_string(key, behind_key);
  add_separator(behind_key, value, ':');
  for (const int32_t rule : any_values()) network_.add_call(value, behind, rule);
  network_.add_bytes(behind, to, '}', '}');
  add_separator(behind, key, ',');
}

}  // namespace megatron::inference
