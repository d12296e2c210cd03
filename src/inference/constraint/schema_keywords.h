// What one schema says, read and checked in form: the place of each complaint is in its message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "inference/constraint/number_range.h"

namespace megatron::inference {

// A schema and where it stands: a JSON pointer ("#/properties/a").
struct SchemaPlace {
  const Json* schema;
  std::string pointer;

  // Throws Error with the place and `reason`.
  [[noreturn]] void refuse(std::string_view reason) const;
  SchemaPlace child(std::string_view key) const;  // of an object that has it
  SchemaPlace child(size_t index) const;          // of an array
};

// Throws Error where it is no object, has a keyword that is not known, or keywords that say nothing
// for its types or beside each other.
void check_keywords(const SchemaPlace& place);

// The schema that "$ref" names, "#" or "#/...".
SchemaPlace resolve(const Json& root, const SchemaPlace& place, std::string_view pointer);

std::vector<std::string> types_of(const SchemaPlace& place);  // not empty

struct CountBounds {
  int64_t minimum = 0, maximum = -1;  // -1: none
};
CountBounds count_bounds(const SchemaPlace& place, std::string_view minimum,
                         std::string_view maximum);
NumberRange number_range(const SchemaPlace& place, bool integer);
bool has_number_bounds(const SchemaPlace& place);

}  // namespace megatron::inference
