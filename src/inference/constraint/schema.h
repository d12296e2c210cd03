// Compiles JSON schemas (2020-12, and the differing spellings of drafts 4 to 7 and OpenAPI) to
// grammars of JSON texts.
//
// Enforced keywords:
//   any type           type (also a list), nullable, enum, const, allOf, anyOf, true and false
//   oneOf              as anyOf; noted unless types, constants or required properties tell its
//                      schemas apart
//   $ref               "#" and pointers within the schema, also recursive
//   object             properties, required, additionalProperties, minProperties, maxProperties;
//                      patternProperties (the values of several patterns are noted)
//   array              items, prefixItems, additionalItems, minItems, maxItems
//   string             pattern, format, minLength, maxLength
//   number, integer    minimum, maximum, exclusiveMinimum, exclusiveMaximum; multipleOf: a whole
//                      number up to 1000, or 0.1, 0.01, ... down to 1e-9; format: int32, int64,
//                      double
//
// Annotations (title, default, ...) do not restrict texts. Every other keyword, and a value of a
// keyword above that a grammar cannot enforce, is noted: texts satisfy all keywords that are not
// noted. A strict schema refuses such keywords, and its objects must have additionalProperties
// false and require all of their properties, as in OpenAI's structured outputs.
//
// Properties come in the schema's order, followed by others; an object that lists properties has
// others only if the schema has additionalProperties or patternProperties. Strings without pattern,
// format, enum and const are any JSON strings; all other strings have one spelling per character
// (characters.h). Numbers are those of number_range.h. There is no white space between tokens,
// except for at most one space after ',' and ':'.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "inference/constraint/network.h"

namespace megatron::inference {

// Adds the schema as rule 0 of `network`. Returns the noted keywords as JSON pointers
// ("#/properties/a/not"). Throws Error naming the place in the schema and the problem there, or
// saying that no value satisfies it. Throws GrammarLimit if it is too large.
std::vector<std::string> add_schema(Network& network, const Json& schema, bool strict);

struct ToolSchema {
  std::string name;
  Json parameters;
  bool strict = false;
};
// Adds {"name": ..., "arguments": ...} for a call of any of the tools as rule 0. The JSON pointers
// for each tool begin with its name ("search#/properties/a/not").
std::vector<std::string> add_tool_calls(Network& network, std::span<const ToolSchema> tools);

}  // namespace megatron::inference
