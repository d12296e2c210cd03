#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "constraint_cases.h"
#include "inference/constraint/grammar.h"

namespace megatron::inference {
namespace {

std::shared_ptr<const Grammar> of(std::string_view schema) {
  return Grammar::from_json_schema(Json::parse(schema), true);
}

void expect_texts(std::string_view schema, const std::vector<std::string>& good,
                  const std::vector<std::string>& bad) {
  const auto grammar = of(schema);
  for (const std::string& text : good)
    EXPECT_EQ(reads(grammar, text), 1) << schema << " and " << text;
  for (const std::string& text : bad)
    EXPECT_NE(reads(grammar, text), 1) << schema << " and " << text;
}

void expect_schema_error(std::string_view schema, std::string_view part) {
  try {
    of(schema);
    ADD_FAILURE() << "no error: " << schema;
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find(part), std::string::npos) << error.what();
  }
}

// An object with one property.
std::string with_property(std::string_view schema) {
  return R"({"type":"object","properties":{"a":)" + std::string(schema) +
         R"(},"required":["a"],"additionalProperties":false})";
}

TEST(ConstraintSchema, ReadsObjectsInTheirOrder) {
  expect_texts(R"({"type":"object","properties":{"b":{"type":"null"},"a\"é":{"type":"boolean"}},
                   "required":["a\"é","b"],"additionalProperties":false,"title":"t"})",
               {R"({"b":null,"a\"é":true})", R"({"b": null, "a\"é": false})"},
               {R"({"a\"é":true,"b":null})", R"({"b":null})", R"({"b":null,  "a\"é":true})",
                R"({ "b":null,"a\"é":true})", R"({"b":null,"a\"é":true} )", "null"});
  expect_texts(R"({"type":"object","properties":{},"additionalProperties":false})", {"{}"},
               {"{ }", R"({"a":1})"});
}

TEST(ConstraintSchema, ReadsArrays) {
  expect_texts(R"({"type":"array","items":{"type":"null"}})",
               {"[]", "[null]", "[null,null]", "[null, null,null, null]"}, {"[null,]", "[,null]"});
  expect_texts(R"({"type":"array","items":{"type":"null"},"minItems":2,"maxItems":3})",
               {"[null,null]", "[null,null,null]"}, {"[]", "[null]", "[null,null,null,null]"});
  expect_texts(R"({"type":"array","items":{"type":"null"},"minItems":1})",
               {"[null]", "[null,null,null,null]"}, {"[]"});
  expect_texts(R"({"type":"array","items":{"type":"null"},"maxItems":0})", {"[]"}, {"[null]"});
}

TEST(ConstraintSchema, ReadsStrings) {
  expect_texts(R"({"type":"string"})",
               {R"("")", R"("aé漢😀")", R"("\"\\\/\b\f\n\r\t\u00e9\uFFFF\ud7ff")",
                R"("\ud83d\ude00\uDBFF\uDFFF")"},
               {"\"\n\"", R"("\x")", R"("\u12g4")", R"("\ud800")", R"("\ud800a")",
                R"("\ud800\u0041")", R"("\udc00")", "\"\xed\xa0\x80\"", "\"\xff\"", "\""});
  expect_texts(R"({"type":"string","minLength":2,"maxLength":3})",
               {R"("ab")", R"("漢\n😀")", R"("\ud83d\ude00x")"},
               {R"("a")", R"("abcd")", R"("😀")"});
  expect_texts(R"({"type":"string","minLength":2})", {R"("ab")", R"("abcdef")"}, {R"("a")"});
}

TEST(ConstraintSchema, ReadsPatternsAnywhereInAString) {
  expect_texts(R"({"type":"string","pattern":"^a+$"})", {R"("aaa")"}, {R"("")", R"("ba")"});
  expect_texts(R"({"type":"string","pattern":"b"})", {R"("b")", R"("abc")", R"("\nb\"")"},
               {R"("ac")"});
  expect_texts(R"({"type":"string","pattern":"^a|b$"})", {R"("ax")", R"("xb")"}, {R"("xa")"});
  // Each string has one spelling.
  expect_texts(R"({"type":"string","pattern":"^[\\n\"\\\\\\x01é/]*$"})", {R"("\n\"\\\u0001é/")"},
               {"\"\n\"", R"("\u00e9")", R"("\u000a")", R"("\/")"});
}

TEST(ConstraintSchema, ReadsEnumsAndConstants) {
  expect_texts(R"({"enum":["a","ab",1,1.5,null,true,"\n"]})",
               {R"("a")", R"("ab")", "1", "1.5", "null", "true", R"("\n")"}, {"a", "2", "false"});
  expect_texts(R"({"const":"x","type":"string"})", {R"("x")"}, {R"("y")"});
  expect_texts(R"({"type":["integer","null"],"enum":[12,1,null]})", {"1", "12", "null"}, {"2"});
}

TEST(ConstraintSchema, ReadsUnionsAndReferences) {
  expect_texts(R"({"anyOf":[{"type":"null"},{"$ref":"#/$defs/b"}],"$defs":{"b":{"enum":[1,2]}}})",
               {"null", "1", "2"}, {"3"});
  expect_texts(R"({"type":["string","boolean"],"maxLength":1})", {R"("a")", "true"}, {R"("ab")"});
  const std::string node =
      R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},
          "required":["next"],"additionalProperties":false})";
  expect_texts(node, {R"({"next":null})", R"({"next":{"next": {"next":null}}})"},
               {R"({"next":{}})", R"({"next":{"next":null})"});
  // References that only lead to references.
  expect_texts(R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"type":"null"}]},
                   "b":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"boolean"}]}}})",
               {"null", "true"}, {"1"});
  expect_texts(R"({"type":"array","items":{"$ref":"#/$defs/x~1y"},
                   "$defs":{"x/y":{"type":"null"}}})",
               {"[null]"}, {"[1]"});
}

TEST(ConstraintSchema, KeepsReadingsApart) {
  // The type of the object only shows at its end.
  const std::string one =
      R"({"type":"object","properties":{"x":{"$ref":"#/$defs/any"},"k":{"const":)";
  const std::string end = R"(}},"required":["x","k"],"additionalProperties":false})";
  const std::string both = R"({"$ref":"#/$defs/any","$defs":{"any":{"anyOf":[{"type":"null"},)" +
                           one + "1" + end + "," + one + "2" + end + "]}}}";
  std::string deep = "null";
  for (int i = 0; i < 60; ++i) deep = R"({"x":)" + deep + R"(,"k":)" + (i % 3 ? "1}" : "2}");
  expect_texts(both, {"null", R"({"x":null,"k":2})", deep}, {R"({"x":null,"k":3})"});
}

TEST(ConstraintSchema, NamesThePlaceOfAnError) {
  expect_schema_error(with_property(R"({"type":"string","not":{"const":"x"}})"),
                      "the JSON schema at '#/properties/a': the keyword 'not' is not supported");
  expect_schema_error(with_property(R"({"type":"array","items":{"oneOf":[]}})"),
                      "'#/properties/a/items': 'oneOf' is not a list");
  expect_schema_error(R"({"anyOf":[{"type":"null"},{"type":"nil"}]})",
                      "'#/anyOf/1': the keyword 'type' is not supported: 'nil' is not a type");
  expect_schema_error(R"({"$ref":"#/$defs/x~0~1","$defs":{"x~/":{"type":"text"}}})",
                      "'#/$defs/x~0~1'");
  expect_schema_error(R"([])", "a schema must be an object, true or false");
}

TEST(ConstraintSchema, WantsClosedObjectsWithAllProperties) {
  expect_schema_error(R"({"type":"object","properties":{},"required":[]})",
                      "'additionalProperties'");
  expect_schema_error(R"({"type":"object","properties":{},"additionalProperties":true})",
                      "'additionalProperties' must be false");
  expect_schema_error(R"({"type":"object","additionalProperties":false})",
                      "'properties' is missing");
  expect_schema_error(
      R"({"type":"object","properties":{"b":{"type":"null"}},"additionalProperties":false})",
      "the property 'b' is not required");
  expect_schema_error(
      R"({"type":"object","properties":{},"required":["c"],"additionalProperties":false})",
      "'c', which is not a property");
}

TEST(ConstraintSchema, RefusesWhatNothingSatisfies) {
  expect_schema_error(R"({"enum":[]})", "'enum' is not a list of at least one value");
  expect_schema_error(R"({"anyOf":[]})", "'anyOf' is not a list of at least one schema");
  expect_schema_error(R"({"type":[]})", "'type' is an empty list");
  expect_schema_error(R"({"type":"array","items":{"type":"null"},"minItems":3,"maxItems":2})",
                      "'minItems' 3 is above 'maxItems' 2");
  expect_schema_error(R"({"type":"integer","minimum":3,"maximum":2})",
                      "no integer of up to 18 digits");
  expect_schema_error(R"({"type":"integer","exclusiveMinimum":2,"exclusiveMaximum":3})",
                      "no integer");
  expect_schema_error(R"({"type":"integer","minimum":11,"maximum":19,"multipleOf":10})",
                      "no integer");
  expect_schema_error(R"({"type":"number","exclusiveMinimum":2,"exclusiveMaximum":2})",
                      "no number");
  expect_schema_error(R"({"type":"string","pattern":"[^\\s\\S]"})", "no string satisfies");
  expect_schema_error(R"({"enum":["a"],"type":"integer"})", "no value satisfies it");
  expect_schema_error(with_property(R"({"$ref":"#"})"),
                      "would have to contain another one, endlessly");
  expect_schema_error(R"({"$ref":"#"})", "endless");
  expect_schema_error(R"({"$ref":"#/$defs/b"})", "there is no '$defs' in '#'");
  expect_schema_error(R"({"$ref":"other.json"})",
                      "no schema in this document is called 'other.json'");
}

TEST(ConstraintSchema, RefusesWhatItCannotHold) {
  expect_schema_error(
      R"({"type":"string","pattern":"(?=a)b"})",
      "'#': the keyword 'pattern' is not supported: the pattern '(?=a)b' at byte 3");
  expect_schema_error(R"({"type":"string","format":"phone"})",
                      "the format 'phone' is not supported");
  expect_schema_error(R"({"type":"number","multipleOf":0.3})", "must be a whole number up to 1000");
  expect_schema_error(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
                      "more than one of its schemas may be satisfied");
  expect_schema_error(R"({"type":"integer","multipleOf":1001})", "up to 1000");
  expect_schema_error(R"({"type":"integer","multipleOf":0})", "must be positive");
  expect_schema_error(R"({"type":"string","maxLength":-1})",
                      "'maxLength' is not a non-negative integer");
  expect_schema_error(R"({"type":"string","maxLength":1000000})", "the limit is 100000");
}

TEST(ConstraintSchema, ReadsAnyObject) {
  const auto object = Grammar::from_json_object();
  std::string deep = "1";
  for (int i = 0; i < 10'000; ++i) deep = "[" + deep + "]";
  for (const std::string& text :
       {std::string("{}"), std::string(R"({"a":[1,-2.5e+10, {"b":null}],"":"x"})"),
        R"({"a":)" + deep + "}"})
    EXPECT_EQ(reads(object, text), 1) << text.substr(0, 100);
  for (const char* text : {"[]", "{", "{,}", R"({"a":01})", R"({"a":1,})", R"({"a":1e999})"})
    EXPECT_NE(reads(object, text), 1) << text;
}

}  // namespace
}  // namespace megatron::inference
