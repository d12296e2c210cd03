#include "inference/constraint/schema_keywords.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <string>

#include "inference/constraint/formats.h"

namespace megatron::inference {
namespace {

constexpr int64_t kMaximumDivisor = 1000;

constexpr std::string_view kAnnotations[] = {"title",
                                             "description",
                                             "default",
                                             "example",
                                             "examples",
                                             "xml",
                                             "deprecated",
                                             "readOnly",
                                             "writeOnly",
                                             "discriminator",
                                             "$schema",
                                             "contentEncoding",
                                             "contentMediaType",
                                             "contentSchema",
                                             "externalDocs",
                                             "$id",
                                             "id",
                                             "$anchor",
                                             "$comment",
                                             "$vocabulary",
                                             "$defs",
                                             "definitions",
                                             "propertyOrdering"};
// Keywords of any type that are enforced. "then" and "else" are noted with "if".
constexpr std::string_view kOfAnyType[] = {"$ref",  "type",  "nullable", "enum", "const",
                                           "allOf", "anyOf", "oneOf",    "then", "else"};
constexpr std::string_view kOfString[] = {"pattern", "minLength", "maxLength"};
constexpr std::string_view kOfNumber[] = {"minimum", "maximum", "exclusiveMinimum",
                                          "exclusiveMaximum", "multipleOf"};
constexpr std::string_view kOfObject[] = {
    "properties",    "required",      "additionalProperties", "patternProperties", "minProperties",
    "maxProperties", "propertyNames", "dependentRequired",    "dependentSchemas",  "dependencies"};
constexpr std::string_view kOfArray[] = {"items",    "prefixItems", "additionalItems",
                                         "minItems", "maxItems",    "uniqueItems",
                                         "contains", "minContains", "maxContains"};

// Digits before the point of the widest numbers that texts have (number_range.cpp).
constexpr int64_t kMaxDigits = 20;

struct NamedType {
  std::string_view name;
  uint8_t type;
};
constexpr NamedType kTypes[] = {{"string", json_type::kString},   {"number", json_type::kNumber},
                                {"integer", json_type::kInteger}, {"boolean", json_type::kBoolean},
                                {"null", json_type::kNull},       {"object", json_type::kObject},
                                {"array", json_type::kArray}};

bool has(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

const Json& number_at(const SchemaPlace& place, std::string_view keyword) {
  const Json& value = (*place.schema)[keyword];
  if (!value.is_number()) place.refuse(fmt::format("'{}' is not a number", keyword));
  return value;
}

// Returns a number below, at or above 0 if a is below, at or above b.
int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int sign = a.negative ? -1 : 1;
  const auto whole = [](const Decimal& d) {
    return static_cast<int64_t>(d.digits.size()) - d.places;
  };
  if (whole(a) != whole(b)) return whole(a) < whole(b) ? -sign : sign;
  const int order = a.digits.compare(b.digits);
  return order < 0 ? -sign : order > 0 ? sign : 0;
}

void tighten(std::optional<NumberRange::Bound>& bound, const Decimal& value, bool exclusive,
             bool is_minimum) {
  const int order = bound ? compare(value, bound->value) : 0;
  const bool tighter = !bound || (is_minimum ? order > 0 : order < 0) || (order == 0 && exclusive);
  if (tighter) bound = NumberRange::Bound{value, exclusive};
}

void read_divisor(NumberRange& range, SchemaReader& reader, const SchemaPlace& place) {
  const Decimal divisor(number_at(place, "multipleOf"));
  if (divisor.negative || divisor.is_zero()) place.refuse("'multipleOf' must be positive");
  const bool power = divisor.digits.find_first_not_of('0') == divisor.digits.size() - 1 &&
                     divisor.digits.back() == '1';
  if (divisor.places > 0) {
    if (power && divisor.places <= 9 && !range.integer) {
      range.most_places = std::min(range.most_places, divisor.places);
    } else if (!(power && range.integer)) {  // every integer is a multiple of 0.1, 0.01, ...
      reader.note(place, "multipleOf",
                  "it must be a whole number up to 1000, or 0.1, 0.01 and so on down to "
                  "0.000000001");
    }
    return;
  }
  const int64_t whole = divisor.digits.size() > 4 ? kMaximumDivisor + 1 : std::stol(divisor.digits);
  const int64_t both = std::lcm(range.divisor, whole);
  if (whole > kMaximumDivisor || both > kMaximumDivisor)
    return reader.note(
        place, "multipleOf",
        fmt::format("it is {}{}; whole numbers up to {} are supported", divisor.digits,
                    range.divisor > 1 ? " in addition to another one" : "", kMaximumDivisor));
  range.integer = true;  // multiples of integers are integers
  range.divisor = both;
}

void read_number_format(NumberRange& range, SchemaReader& reader, const SchemaPlace& place) {
  const Json& format = (*place.schema)["format"];
  if (format == Json("int32")) {
    tighten(range.minimum, Decimal(Json(int64_t{INT32_MIN})), false, true);
    tighten(range.maximum, Decimal(Json(int64_t{INT32_MAX})), false, false);
  } else if (format != Json("int64") && format != Json("double") &&
             !(format.is_string() && !format_pattern(format.as_string()).empty())) {
    reader.note(place, "format", "for numbers int32, int64 and double are supported");
  }
}

}  // namespace

bool is_annotation(std::string_view keyword) {
  return has(kAnnotations, keyword) || keyword.starts_with("x-");
}

uint8_t types_of_keyword(std::string_view keyword) {
  if (has(kOfString, keyword)) return json_type::kString;
  if (has(kOfNumber, keyword)) return json_type::kNumber;
  if (has(kOfObject, keyword)) return json_type::kObject;
  if (has(kOfArray, keyword)) return json_type::kArray;
  return keyword == "format" ? json_type::kString | json_type::kNumber : 0;
}

uint8_t types_named(SchemaReader& reader, const SchemaPlace& place) {
  const Json& value = (*place.schema)["type"];
  uint8_t types = 0;
  const auto add = [&](const Json& one) {
    if (!one.is_string()) place.refuse("'type' is neither a string nor a list of strings");
    const auto* known =
        std::ranges::find(kTypes, std::string_view(one.as_string()), &NamedType::name);
    if (known == std::end(kTypes)) {
      std::string names;
      for (const NamedType& type : kTypes)
        names += (names.empty() ? "" : ", ") + std::string(type.name);
      reader.note(place, "type",
                  fmt::format("'{}' is not a type; types are {}", one.as_string(), names));
    }
    types |= known == std::end(kTypes) ? json_type::kAll : known->type;
  };
  if (value.is_array()) {
    for (const Json& one : value.as_array()) add(one);
  } else {
    add(value);
  }
  if (types == 0) place.refuse("'type' is an empty list: no value satisfies it");
  const Json* nullable = place.find("nullable");
  if (nullable != nullptr && *nullable == Json(true)) types |= json_type::kNull;
  return types;
}

void note_others(SchemaReader& reader, const SchemaPlace& place) {
  for (const auto& [keyword, value] : place.schema->as_object()) {
    if (is_annotation(keyword) || has(kOfAnyType, keyword) || types_of_keyword(keyword) != 0 ||
        place.find(keyword) == nullptr)
      continue;
    reader.note(place, keyword, "it cannot be enforced during generation");
  }
}

void check_strict_object(const SchemaPlace& place) {
  const Json *additional = place.find("additionalProperties"),
             *properties = place.find("properties"), *list = place.find("required");
  if (additional == nullptr || *additional != Json(false))
    place.refuse("'additionalProperties' must be false in a strict schema");
  if (properties == nullptr) place.refuse("'properties' is missing");
  if (!properties->is_object()) place.refuse("'properties' is not an object");
  std::set<std::string_view> required;
  if (list != nullptr && list->is_array()) {
    for (const Json& name : list->as_array())
      if (name.is_string()) required.insert(name.as_string());
  }
  for (const auto& [name, schema] : properties->as_object()) {
    if (!required.erase(name))
      place.refuse(
          fmt::format("the property '{}' is not required, but in a strict schema all must be (make "
                      "it nullable if it is optional)",
                      name));
  }
  if (!required.empty())
    place.refuse(fmt::format("'required' lists '{}', which is not a property", *required.begin()));
}

void narrow(CountBounds& bounds, SchemaReader& reader, const SchemaPlace& place,
            std::string_view minimum, std::string_view maximum, int64_t most_held) {
  const auto read = [&](std::string_view keyword) {
    const Decimal number(number_at(place, keyword));
    if (number.negative || number.places > 0)
      place.refuse(fmt::format("'{}' is not a non-negative integer", keyword));
    return number.digits.size() > 6 ? kMaximumCount + 1 : std::stol(number.digits);
  };
  if (place.find(minimum) != nullptr) {
    bounds.minimum = std::max(bounds.minimum, read(minimum));
    if (bounds.minimum > kMaximumCount) {
      bounds.minimum = kMaximumCount;
      reader.note(
          place, minimum,
          fmt::format("it is {}; the limit is {}", (*place.schema)[minimum].dump(), kMaximumCount));
    }
  }
  if (place.find(maximum) == nullptr) return;
  const int64_t most = read(maximum);
  if (most > most_held)
    return reader.note(
        place, maximum,
        fmt::format("it is {}; the limit is {}", (*place.schema)[maximum].dump(), most_held));
  if (bounds.maximum < 0 || most < bounds.maximum) bounds.maximum = most;
}

bool has_number_bounds(const SchemaPlace& place) {
  return place.find("format") != nullptr || std::ranges::any_of(kOfNumber, [&](auto keyword) {
           return place.find(keyword) != nullptr;
         });
}

void narrow(NumberRange& range, SchemaReader& reader, const SchemaPlace& place) {
  for (const bool is_minimum : {true, false}) {
    const std::string_view inclusive = is_minimum ? "minimum" : "maximum";
    const std::string_view exclusive = is_minimum ? "exclusiveMinimum" : "exclusiveMaximum";
    auto& bound = is_minimum ? range.minimum : range.maximum;
    const Json* draft_4 = place.find(exclusive);  // true: the other bound is exclusive
    const bool is_flag = draft_4 != nullptr && draft_4->is_bool();
    const auto take = [&](std::string_view keyword, bool is_exclusive) {
      const Decimal value(number_at(place, keyword));
      const int64_t digits = static_cast<int64_t>(value.digits.size()) - value.places;
      if (digits > kMaxDigits && value.negative != is_minimum)  // no number satisfies it
        return reader.note(place, keyword,
                           fmt::format("numbers are limited to {} digits", kMaxDigits));
      tighten(bound, value, is_exclusive, is_minimum);
    };
    if (place.find(inclusive) != nullptr) take(inclusive, is_flag && draft_4->as_bool());
    if (draft_4 != nullptr && !is_flag) take(exclusive, true);
  }
  if (place.find("multipleOf") != nullptr) read_divisor(range, reader, place);
  if (place.find("format") != nullptr) read_number_format(range, reader, place);
}

bool contains(const NumberRange& range, const Json& number) {
  const Decimal value(number);
  const auto outside = [&](const std::optional<NumberRange::Bound>& bound, int sign) {
    if (!bound) return false;
    const int order = sign * compare(value, bound->value);
    return order < 0 || (order == 0 && bound->exclusive);
  };
  if (outside(range.minimum, 1) || outside(range.maximum, -1)) return false;
  if (range.integer && value.places > 0) return false;
  if (value.places > range.most_places && range.most_places < 15) return false;
  if (range.divisor == 1) return true;
  int64_t rest = 0;
  for (const char digit : value.digits) rest = (rest * 10 + (digit - '0')) % range.divisor;
  return rest == 0;
}

}  // namespace megatron::inference
