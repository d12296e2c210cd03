// JSON schemas to texts of JSON: the strict subset of OpenAI's structured outputs.
//
//   type                    string, number, integer, boolean, null, object, array; a list of them
//   enum, const, anyOf
//   $defs, definitions, $ref   "#" and pointers within the schema; recursion is allowed
//   object                  properties, required (all of them), additionalProperties (false)
//   array                   items, minItems, maxItems
//   string                  pattern (somewhere in the string), format, minLength and maxLength (not
//                           together with pattern or format)
//   number, integer         minimum, maximum, exclusiveMinimum, exclusiveMaximum; multipleOf: a
//                           whole number up to 1000, or for numbers 0.1, 0.01, ... down to 1e-9
//   title, description, $schema, $id, $comment   say nothing about the text
//
// Properties come in the schema's order. Strings without pattern, format, enum and const are any
// strings of JSON; the others spell each character in one way (characters.h). Numbers are those of
// number_range.h. Between tokens there is no white space, but for at most one space behind ',' and
// ':'.
#pragma once

#include "base/json.h"
#include "inference/constraint/network.h"

namespace megatron::inference {

// As rule 0 of `network`. Throws Error naming the place in the schema (a JSON pointer) and what is
// wrong there: any other keyword, one that is not its type's, values that it cannot have, more than
// 5000 properties, 1000 values of enums, 10 nested objects and arrays, or 50 nested schemas, or
// something that no value satisfies.
void add_schema(Network& network, const Json& schema);

}  // namespace megatron::inference
