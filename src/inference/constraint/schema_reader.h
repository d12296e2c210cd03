// Reads JSON schemas before they are compiled to a grammar: checks the form of keywords, follows
// references, and turns conjunctions of schemas into alternatives.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "inference/constraint/network.h"

namespace megatron::inference {

struct SchemaDocument {
  const Json* root;
  std::string name;  // prefix of '#' in pointers
  // Keywords that cannot be enforced are errors, and objects must list all properties as required.
  bool strict;
};

// A schema and its location in the document.
struct SchemaPlace {
  const Json* schema;
  const SchemaDocument* document;
  std::string pointer;  // "#/properties/a", in the document
  size_t number;        // position in the order of discovery

  [[noreturn]] void refuse(std::string_view reason) const;  // throws Error with the place
  // Null if the keyword is absent. Some serializers write absent keywords as null; in schemas that
  // are not strict, null therefore counts as absent, except for "const".
  const Json* find(std::string_view keyword) const {
    const Json* value = schema->is_object() ? schema->find(keyword) : nullptr;
    const bool absent =
        value != nullptr && value->is_null() && !document->strict && keyword != "const";
    return absent ? nullptr : value;
  }
};

// Thrown if a limit is exceeded at a place in the schema.
class PlacedLimit : public GrammarLimit {
 public:
  PlacedLimit(const SchemaPlace& place, std::string_view reason);
};

struct ByNumber {
  bool operator()(const SchemaPlace* a, const SchemaPlace* b) const {
    return a->number < b->number;
  }
};
// Schemas that a value must all satisfy.
using Conjunction = std::set<const SchemaPlace*, ByNumber>;

namespace json_type {
constexpr uint8_t kNull = 1, kBoolean = 2, kInteger = 4, kFraction = 8, kString = 16, kArray = 32,
                  kObject = 64, kNumber = kInteger | kFraction, kAll = 127;
}  // namespace json_type

uint8_t type_of(const Json& value);
bool same_value(const Json& a, const Json& b);  // compares as JSON Schema does: 1 equals 1.0

struct Alternative {
  uint8_t types = json_type::kAll;
  std::optional<Json::Array> values;  // if set, the value must be one of these
  Conjunction places;                 // places whose type-specific keywords apply
};

class SchemaReader {
 public:
  static constexpr size_t kMaximumSteps = 1'000'000;

  const SchemaPlace& root(const SchemaDocument& document);
  // Returns a part of `place`: `schema` under a keyword, or under a name or index of the keyword's
  // value.
  const SchemaPlace& child(const SchemaPlace& place, const Json& schema, std::string_view keyword);
  const SchemaPlace& child(const SchemaPlace& place, const Json& schema, std::string_view keyword,
                           std::string_view name);
  // Returns the schema that "$ref" of `place` names: "#" or "#/...", possibly percent-encoded, or
  // the name of a schema in the document. Any other name is noted, and any value satisfies it.
  const SchemaPlace& target(const SchemaPlace& place);

  // Notes that the keyword is not enforced. Throws Error in a strict document.
  void note(const SchemaPlace& place, std::string_view keyword, std::string_view reason);
  const std::set<std::string>& notes() const { return notes_; }
  // Throws PlacedLimit if more than kMaximumSteps steps were taken in all.
  void spend(const SchemaPlace& place, size_t steps);

  // A value satisfies `conjunction` if it satisfies one of the alternatives. A reference that leads
  // back to itself without a value in between has no alternatives.
  std::vector<Alternative> alternatives(const Conjunction& conjunction);
  // The first reference that leads back to itself; null if there was none.
  const SchemaPlace* endless() const { return endless_; }

 private:
  const SchemaPlace& named_target(const SchemaPlace& place, const std::string& written);
  class Expansion;

  const SchemaPlace& place_of(const Json& schema, const SchemaDocument& document,
                              std::string pointer);
  bool exclude_each_other(const SchemaPlace& place, const Json::Array& branches,
                          std::string_view keyword);
  bool values_differ(const SchemaPlace& place,
                     const std::vector<std::vector<Alternative>>& branches);
  bool disjoint(const SchemaPlace& place, const Alternative& a, const Alternative& b);
  std::set<std::string_view> required_names(const Alternative& alternative);
  static bool has_no_place_for(const Alternative& alternative, std::string_view name);
  std::optional<Json::Array> constants_of(const Alternative& alternative, std::string_view name);

  std::deque<SchemaPlace> places_;
  std::map<const Json*, const SchemaPlace*> known_;
  std::set<std::string> notes_;
  std::set<const SchemaPlace*> compared_;  // places whose oneOf was compared
  const SchemaPlace* endless_ = nullptr;
  size_t steps_ = 0;
};

}  // namespace megatron::inference
