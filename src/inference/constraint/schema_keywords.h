// Reads keywords of JSON schemas and checks the form of their values. All functions throw Error
// with the place.
#pragma once

#include <cstdint>
#include <string_view>

#include "inference/constraint/number_range.h"
#include "inference/constraint/schema_reader.h"

namespace megatron::inference {

bool is_annotation(std::string_view keyword);  // true if it does not restrict values
// Returns the types that a keyword applies to, or 0 for a keyword that does not belong to a type.
uint8_t types_of_keyword(std::string_view keyword);
// Returns the types given by "type" and OpenAPI's "nullable". An unknown name is noted, and then
// any type is allowed.
uint8_t types_named(SchemaReader& reader, const SchemaPlace& place);
// Notes the keywords of a schema that are not enforced for any type.
void note_others(SchemaReader& reader, const SchemaPlace& place);

// Throws Error unless an object of a strict schema has properties, requires all of them and allows
// no others.
void check_strict_object(const SchemaPlace& place);

constexpr int64_t kMaximumCount = 100'000;

struct CountBounds {
  int64_t minimum = 0, maximum = -1;  // -1: none
};
// Narrows `bounds` to those given at a place. A maximum above `most_held` is noted and not
// enforced.
void narrow(CountBounds& bounds, SchemaReader& reader, const SchemaPlace& place,
            std::string_view minimum, std::string_view maximum, int64_t most_held);

bool has_number_bounds(const SchemaPlace& place);
// Narrows `range`; a multipleOf and a format that cannot be enforced are noted.
void narrow(NumberRange& range, SchemaReader& reader, const SchemaPlace& place);
bool contains(const NumberRange& range, const Json& number);

}  // namespace megatron::inference
