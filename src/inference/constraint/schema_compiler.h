// Compiles the alternatives of a schema to rules of a network.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "inference/constraint/character_graph.h"
#include "inference/constraint/json_text.h"
#include "inference/constraint/schema_keywords.h"

namespace megatron::inference {

class SchemaCompiler {
 public:
  // most_held: the largest maxLength, maxItems and maxProperties that are enforced.
  SchemaCompiler(Network& network, int64_t most_held)
      : network_(network), text_(network), most_held_(most_held) {}

  // Adds any value that satisfies the document.
  void add_document(int32_t from, int32_t to, const SchemaDocument& document);
  // Adds a call of one of the tools; its arguments satisfy the document with the tool's name.
  void add_calls(int32_t from, int32_t to, std::span<const SchemaDocument> tools);
  // Makes the queued rules and checks that each document has a value.
  void finish();
  std::vector<std::string> notes() const {
    return {reader_.notes().begin(), reader_.notes().end()};
  }

 private:
  struct Rule {  // a queued rule
    int32_t rule;
    Alternative values;  // values of one type
  };
  struct Needed {
    int32_t state;  // state from which some text must lead
    const SchemaPlace* place;
    std::string reason;
  };
  struct ObjectShape;

  const std::vector<int32_t>& rules_of(Conjunction schemas);
  int32_t rule_of(uint8_t type, const Conjunction& places);
  int32_t rule_of(std::vector<std::string> values);
  Json::Array satisfying(const Alternative& alternative);
  void add_value(int32_t from, int32_t to, Conjunction schemas);
  void add_type(int32_t from, int32_t to, const Alternative& values);

  ObjectShape shape_of(const Conjunction& places);
  void add_object(int32_t from, int32_t to, const Conjunction& places);
  int32_t other_names(const ObjectShape& shape);
  void add_array(int32_t from, int32_t to, const Conjunction& places);
  void add_string(int32_t from, int32_t to, const Conjunction& places);
  void add_quoted(int32_t from, int32_t to, const CharacterGraph& text);  // a JSON string
  void add_number(int32_t from, int32_t to, const Conjunction& places, bool integer);

  std::vector<CharacterGraph> text_conditions(const Conjunction& places);
  // Returns a new state after `from` from which some text must lead to the end. Otherwise the
  // schema may have no value, for this reason.
  int32_t needed(int32_t from, const SchemaPlace& place, std::string reason);

  Network& network_;
  JsonText text_;
  const int64_t most_held_;
  SchemaReader reader_;
  // Rules for any value and for values of one type, by the numbers of their places, and rules for
  // lists of texts.
  std::map<std::vector<size_t>, std::vector<int32_t>> rules_;
  std::map<std::pair<uint8_t, std::vector<size_t>>, int32_t> typed_;
  std::map<std::vector<std::string>, int32_t> listed_;
  size_t pattern_steps_ = 0;  // steps spent on intersections
  std::vector<Rule> queue_;
  std::vector<Needed> needed_;
  std::vector<std::pair<int32_t, const SchemaPlace*>> documents_;  // by their first state
};

}  // namespace megatron::inference
