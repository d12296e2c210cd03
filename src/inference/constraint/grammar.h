// Grammars: sets of texts that generation can be constrained to.
//
// JSON schemas (2020-12, and the differing spellings of drafts 4 to 7 and OpenAPI) become grammars
// of JSON texts.
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

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "inference/constraint/network.h"
#include "inference/constraint/token_bytes.h"

namespace megatron::inference {

class Automaton;

struct ToolSchema {
  std::string name;
  Json parameters;
  bool strict = false;
};

// A grammar is compiled once and shared by requests and threads. It keeps the automata that are
// built lazily during generation (Automaton).
class Grammar {
 public:
  // JSON texts that satisfy a schema. Throws Error naming the place in the schema and the problem
  // there, or saying that no value satisfies it, and GrammarLimit if it is too large.
  static std::shared_ptr<const Grammar> from_json_schema(const Json& schema, bool strict = false);
  // {"name": ..., "arguments": ...}: a call of one of the tools. The JSON pointers for each tool
  // begin with its name ("search#/properties/a/not").
  static std::shared_ptr<const Grammar> from_tool_calls(std::span<const ToolSchema> tools);
  static std::shared_ptr<const Grammar> from_json_object();  // any object
  static std::shared_ptr<const Grammar> from_texts(const std::vector<std::string>& texts);
  // Texts that the pattern matches as a whole (pattern.h). Throws Error if it matches none.
  static std::shared_ptr<const Grammar> from_regex(std::string_view pattern);

  // Rule 0 of the network must not be empty. unenforced: keywords of the schema that the grammar
  // does not enforce, as JSON pointers ("#/properties/a/not").
  explicit Grammar(Network network, std::vector<std::string> unenforced = {});
  ~Grammar();
  const Network& network() const { return network_; }
  const std::vector<std::string>& unenforced() const { return unenforced_; }
  // Bytes of memory, including the states that its automata have cached so far.
  size_t bytes() const;

  // Returns the tokenizer's automaton, which all requests share; a new one if it is full.
  std::shared_ptr<Automaton> automaton(const std::shared_ptr<const TokenBytes>& tokens) const;

 private:
  Network network_;
  std::vector<std::string> unenforced_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<Automaton>> automata_;
};

}  // namespace megatron::inference
