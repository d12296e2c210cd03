#include "inference/constraint/schema_keywords.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

#include "base/error.h"

namespace megatron::inference {
namespace {

using Names = std::span<const std::string_view>;

constexpr int64_t kMaximumCount = 100'000;
constexpr int64_t kMaximumDivisor = 1000;

constexpr std::array<std::string_view, 7> kAnnotations = {
    "title", "description", "$schema", "$id", "$comment", "$defs", "definitions"};
constexpr std::array<std::string_view, 7> kTypes = {"string", "number", "integer", "boolean",
                                                    "null",   "object", "array"};
constexpr std::array<std::string_view, 4> kOfString = {"pattern", "format", "minLength",
                                                       "maxLength"};
constexpr std::array<std::string_view, 5> kOfNumber = {"minimum", "maximum", "exclusiveMinimum",
                                                       "exclusiveMaximum", "multipleOf"};
constexpr std::array<std::string_view, 3> kOfObject = {"properties", "required",
                                                       "additionalProperties"};
constexpr std::array<std::string_view, 3> kOfArray = {"items", "minItems", "maxItems"};
// Keywords that decide what kind of schema it is.
constexpr std::array<std::string_view, 4> kForms = {"$ref", "anyOf", "enum", "const"};

Names keywords_of(std::string_view type) {
  if (type == "string") return kOfString;
  if (type == "number" || type == "integer") return kOfNumber;
  if (type == "object") return kOfObject;
  if (type == "array") return kOfArray;
  return {};
}

bool has(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

template <class List>
std::string joined(const List& names) {
  std::string all;
  for (const std::string_view name : names) {
    if (!all.empty()) all += ", ";
    all += name;
  }
  return all;
}

bool is_known(std::string_view key) {
  return key == "type" || has(kAnnotations, key) || has(kForms, key) || has(kOfString, key) ||
         has(kOfNumber, key) || has(kOfObject, key) || has(kOfArray, key);
}

// Each keyword belongs to one of the types.
void check_type_keywords(const SchemaPlace& place) {
  const std::vector<std::string> types = types_of(place);
  for (const auto& [key, value] : place.schema->as_object()) {
    if (key == "type" || has(kAnnotations, key)) continue;
    const std::string& name = key;
    if (std::ranges::none_of(types, [&](auto& type) { return has(keywords_of(type), name); }))
      place.refuse(
          fmt::format("'{}' says nothing about the type {}; leave it out", key, joined(types)));
  }
}

std::string escaped(std::string_view key) {
  std::string out;
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

std::string unescaped(std::string_view token) {
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1')) {
      out += token[++i] == '0' ? '~' : '/';
    } else {
      out += token[i];
    }
  }
  return out;
}

const Json& number_at(const SchemaPlace& place, std::string_view key) {
  const Json& value = (*place.schema)[key];
  if (!value.is_number()) place.refuse(fmt::format("'{}' is not a number", key));
  return value;
}

// The tighter of a bound and the one that is there.
void tighten(std::optional<NumberRange::Bound>& bound, double& value, const Json& number,
             bool exclusive, bool is_minimum) {
  const double other = number.as_number();
  const bool tighter =
      !bound || (is_minimum ? other > value : other < value) || (other == value && exclusive);
  if (!tighter) return;
  bound = NumberRange::Bound{Decimal(number), exclusive};
  value = other;
}

void read_divisor(const SchemaPlace& place, NumberRange& range) {
  const Json& number = number_at(place, "multipleOf");
  const Decimal divisor(number);
  if (divisor.negative || divisor.is_zero()) place.refuse("'multipleOf' is not above 0");
  if (divisor.places == 0) {
    range.integer = true;  // multiples of whole numbers are whole
    if (divisor.digits.size() > 4 || std::stol(divisor.digits) > kMaximumDivisor)
      place.refuse(fmt::format("'multipleOf' is {}; whole numbers up to {} are supported",
                               divisor.digits, kMaximumDivisor));
    range.divisor = std::stol(divisor.digits);
    return;
  }
  const bool power = divisor.digits.find_first_not_of('0') == divisor.digits.size() - 1 &&
                     divisor.digits.back() == '1';
  if (range.integer || !power || divisor.places > 9)
    place.refuse(
        "'multipleOf' is supported for whole numbers and, where the type is number, for 0.1, 0.01 "
        "and so on down to 0.000000001");
  range.most_places = divisor.places;
}

}  // namespace

void SchemaPlace::refuse(std::string_view reason) const {
  fail("the JSON schema at '{}': {}", pointer, reason);
}

SchemaPlace SchemaPlace::child(std::string_view key) const {
  return {&(*schema)[key], pointer + "/" + escaped(key)};
}

SchemaPlace SchemaPlace::child(size_t index) const {
  return {&schema->as_array()[index], pointer + "/" + std::to_string(index)};
}

void check_keywords(const SchemaPlace& place) {
  if (!place.schema->is_object())
    place.refuse(place.schema->is_bool() ? "true and false are not supported as schemas"
                                         : "a schema must be an object");
  for (const auto& [key, value] : place.schema->as_object()) {
    if (!is_known(key)) place.refuse(fmt::format("the keyword '{}' is not supported", key));
  }
  for (const std::string_view form : kForms) {
    if (!place.schema->contains(form)) continue;
    const bool takes_type = form == "enum" || form == "const";
    for (const auto& [key, value] : place.schema->as_object()) {
      if (key != form && !has(kAnnotations, key) && !(takes_type && key == "type"))
        place.refuse(fmt::format("'{}' cannot stand beside '{}'", key, form));
    }
    return;
  }
  if (!place.schema->contains("type"))
    place.refuse("it has none of 'type', 'enum', 'const', 'anyOf' and '$ref'; one is needed");
  check_type_keywords(place);
}

SchemaPlace resolve(const Json& root, const SchemaPlace& place, std::string_view pointer) {
  SchemaPlace at{&root, "#"};
  if (!pointer.starts_with('#') || (pointer.size() > 1 && pointer[1] != '/'))
    place.refuse(fmt::format("'$ref' is '{}'; supported are '#' and '#/...'", pointer));
  std::string_view rest = pointer.substr(1);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('/', 1), rest.size());
    const std::string token = unescaped(rest.substr(1, end - 1));
    rest.remove_prefix(end);
    size_t index = 0;
    const auto [stop, error] = std::from_chars(token.data(), token.data() + token.size(), index);
    const bool is_index = error == std::errc() && stop == token.data() + token.size();
    if (at.schema->is_object() && at.schema->contains(token)) {
      at = at.child(token);
    } else if (at.schema->is_array() && is_index && index < at.schema->as_array().size()) {
      at = at.child(index);
    } else {
      place.refuse(
          fmt::format("'$ref' is '{}', and there is no '{}' in '{}'", pointer, token, at.pointer));
    }
  }
  return at;
}

std::vector<std::string> types_of(const SchemaPlace& place) {
  const Json& value = (*place.schema)["type"];
  std::vector<std::string> types;
  const auto add = [&](const Json& one) {
    if (!one.is_string()) place.refuse("'type' is no string and no list of strings");
    const std::string& name = one.as_string();
    if (!has(kTypes, name))
      place.refuse(fmt::format("the type '{}' is not known; known are {}", name, joined(kTypes)));
    if (std::ranges::find(types, name) != types.end())
      place.refuse(fmt::format("the type '{}' is named twice", name));
    types.push_back(name);
  };
  if (value.is_array()) {
    for (const Json& one : value.as_array()) add(one);
  } else {
    add(value);
  }
  if (types.empty()) place.refuse("'type' is an empty list: no value satisfies it");
  return types;
}

CountBounds count_bounds(const SchemaPlace& place, std::string_view minimum,
                         std::string_view maximum) {
  CountBounds bounds;
  const auto read = [&](std::string_view key, int64_t& value) {
    if (!place.schema->contains(key)) return;
    const Decimal number(number_at(place, key));
    if (number.negative || number.places > 0)
      place.refuse(fmt::format("'{}' is no whole number of at least 0", key));
    if (number.digits.size() > 6 || std::stol(number.digits) > kMaximumCount)
      place.refuse(fmt::format("'{}' is {}; the limit is {}", key, number.digits, kMaximumCount));
    value = std::stol(number.digits);
  };
  read(minimum, bounds.minimum);
  read(maximum, bounds.maximum);
  if (bounds.maximum >= 0 && bounds.minimum > bounds.maximum)
    place.refuse(fmt::format("'{}' {} is above '{}' {}: no value satisfies both", minimum,
                             bounds.minimum, maximum, bounds.maximum));
  return bounds;
}

bool has_number_bounds(const SchemaPlace& place) {
  return std::ranges::any_of(kOfNumber, [&](auto key) { return place.schema->contains(key); });
}

NumberRange number_range(const SchemaPlace& place, bool integer) {
  NumberRange range;
  range.integer = integer;
  double lowest = 0, highest = 0;
  for (const bool exclusive : {false, true}) {
    const std::string_view low = exclusive ? "exclusiveMinimum" : "minimum";
    const std::string_view high = exclusive ? "exclusiveMaximum" : "maximum";
    if (place.schema->contains(low))
      tighten(range.minimum, lowest, number_at(place, low), exclusive, true);
    if (place.schema->contains(high))
      tighten(range.maximum, highest, number_at(place, high), exclusive, false);
  }
  if (place.schema->contains("multipleOf")) read_divisor(place, range);
  return range;
}

}  // namespace megatron::inference
