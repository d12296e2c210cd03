// Schemas that are not strict: the enforced part, and the keywords reported as not enforced.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "constraint_cases.h"
#include "inference/constraint/grammar.h"

namespace megatron::inference {
namespace {

using Texts = std::vector<std::string>;

struct KeywordCase {
  std::string schema;
  Texts good, bad;
  Texts notes = {};  // the reported keywords
};

void check(const KeywordCase& one) {
  SCOPED_TRACE(one.schema);
  const auto grammar = Grammar::from_json_schema(Json::parse(one.schema));
  for (const std::string& text : one.good) EXPECT_EQ(reads(grammar, text), 1) << text;
  for (const std::string& text : one.bad) EXPECT_NE(reads(grammar, text), 1) << text;
  EXPECT_EQ(grammar->unenforced(), one.notes);
}

std::string keyword_error(const std::string& schema) {
  try {
    Grammar::from_json_schema(Json::parse(schema));
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(ConstraintKeywords, ObjectsHaveOptionalAndOtherProperties) {
  const std::string ab = R"("properties":{"a":{"const":1},"b":{"const":2}})";
  for (const KeywordCase& one : {
           KeywordCase{"{" + ab + "}",
                       {"{}", R"({"a":1})", R"({"b":2})", R"({"a":1, "b":2})"},
                       {R"({"b":2,"a":1})", R"({"c":1})", R"({,"b":2})", R"({"a":1,})", "1"}},
           {R"({"type":"object","required":["b"],)" + ab + "}",
            {R"({"b":2})", R"({"a":1,"b":2})"},
            {"{}", R"({"a":1})"}},
           {R"({"type":"object"})", {"{}", R"({"x":[1],"y":{}})"}, {"[]"}},
           {R"({"additionalProperties":true,)" + ab + "}",
            {R"({"a":1,"c":[{}],"d":null})", R"({"aa":0})", R"({"":0})", R"({"\u0001\"é":0})"},
            {R"({"c":1,"a":1})", R"({"c":1,"a":2})", R"({"c":0,"\u0061":2})", R"({"a":2})"}},
           {R"({"additionalProperties":{"type":"null"},)" + ab + "}",
            {R"({"b":2,"c":null})"},
            {R"({"c":1})", R"({"b":null})"}},
           {R"({"required":["c"],"additionalProperties":{"type":"null"},)" + ab + "}",
            {R"({"b":2,"c":null})"},
            {R"({"b":2})", R"({"c":1})"}},
           {R"({"required":["c"],"additionalProperties":false,)" + ab.substr(0, 13) +
                R"({"c":true}})",
            {R"({"c":[]})"},
            {"{}"}},
           {R"({"patternProperties":{"^x[0-9]$":{"type":"null"}},"properties":{"x1":true},
                "additionalProperties":false})",
            {"{}", R"({"x1":null,"x2":null})", R"({"x2":null})"},
            {R"({"x1":1})", R"({"x2":1})", R"({"y":null})", R"({"x2":null,"x1":1})"}},
           {R"({"minProperties":1,"maxProperties":2,"properties":{"a":{"const":1},"b":{"const":2},
                "c":{"const":3}}})",
            {R"({"a":1})", R"({"b":2,"c":3})"},
            {"{}", R"({"a":1,"b":2,"c":3})"}},
           {R"({"maxProperties":1})", {"{}", R"({"a":1})"}, {R"({"a":1,"b":1})"}},
       })
    check(one);
}

TEST(ConstraintKeywords, ArraysHaveAnyItemsOrListedOnes) {
  for (const KeywordCase& one : {
           KeywordCase{R"({"type":"array"})", {"[]", "[1,\"a\",[{}]]"}, {"{}"}},
           {R"({"prefixItems":[{"const":1},{"const":2}],"items":false})",
            {"[]", "[1]", "[1,2]"},
            {"[2]", "[1,2,3]"}},
           {R"({"prefixItems":[{"const":1}],"items":{"const":9},"minItems":2,"maxItems":3})",
            {"[1,9]", "[1, 9,9]"},
            {"[1]", "[9,9]", "[1,9,9,9]"}},
           {R"({"items":[{"const":1},{"const":2}],"additionalItems":{"const":9}})",
            {"[]", "[1,2]", "[1,2,9,9]"},
            {"[1,9]"}},
           {R"({"items":[{"const":1}],"minItems":1})", {"[1]", "[1,2,{}]"}, {"[]", "[2]"}},
       })
    check(one);
}

TEST(ConstraintKeywords, SchemasHoldTogether) {
  for (const KeywordCase& one : {
           KeywordCase{R"({"allOf":[{"properties":{"a":{"const":1}},"required":["a"]},
                                    {"properties":{"b":{"const":2}}}]})",
                       {R"({"a":1})", R"({"a":1,"b":2})"},
                       {"{}", R"({"b":2})"}},
           {R"({"allOf":[{"properties":{"a":{"minimum":2}}},{"properties":{"a":{"maximum":4}}}],
                "properties":{"a":{"type":"integer"}}})",
            {R"({"a":3})"},
            {R"({"a":1})", R"({"a":5})", R"({"a":2.5})"}},
           {R"({"type":"object","properties":{"k":{"$ref":"#/$defs/E","default":"a","title":"t"}},
                "$defs":{"E":{"enum":["a","b"]}}})",
            {"{}", R"({"k":"b"})"},
            {R"({"k":"c"})"}},
           {R"({"$ref":"#/$defs/n","maximum":3,"$defs":{"n":{"type":"integer","minimum":2}}})",
            {"2", "3"},
            {"1", "4"}},
           {R"({"$ref":"#/%24defs/a%20b~1c","$defs":{"a b/c":{"const":5}}})", {"5"}, {"6"}},
           {R"({"type":["string","null","integer"],"anyOf":[{"minimum":3},{"type":"null"}]})",
            {"3", "null"},
            {"2"}},
           {R"({"type":"string","nullable":true,"maxLength":1})", {"null", R"("a")"}, {R"("ab")"}},
           {R"({"enum":[1,2,3,"a","abc",null,2.5],"minimum":2,"maxLength":2})",
            {"2", "3", "2.5", R"("a")", "null"},
            {"1", R"("abc")"}},
           {R"({"enum":["ab","b"],"pattern":"^a"})", {R"("ab")"}, {R"("b")"}},
           {R"({"const":1,"enum":[2,1.0]})", {"1.0"}, {"2"}},
           {"true", {"1", "[]", R"({"a":null})"}, {"nul"}},
           {"{}", {"1", "[]"}, {""}},
           {R"({"anyOf":[false,{"const":1}]})", {"1"}, {"2"}},
           {R"({"$ref":"#/$defs/tree","$defs":{"tree":{"properties":{"left":{"$ref":"#/$defs/tree"},
                "right":{"anyOf":[{"$ref":"#/$defs/tree"},{"type":"null"}]}}}}})",
            {"{}", R"({"left":{"right":null},"right":{}})"},
            {R"({"left":null})"}},
       })
    check(one);
}

TEST(ConstraintKeywords, BranchesOfOneOfAreToldApart) {
  for (const KeywordCase& one : {
           KeywordCase{
               R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"\""}, {"[]"}},
           {R"({"oneOf":[{"enum":[1,2]},{"const":"a"}]})", {"1", "\"a\""}, {"3"}},
           {R"({"oneOf":[{"$ref":"#/$defs/c"},{"$ref":"#/$defs/d"}],"discriminator":{},
                "$defs":{"c":{"type":"object","properties":{"k":{"const":"c"}},"required":["k"]},
                         "d":{"type":"object","properties":{"k":{"enum":["d"]}},"required":["k"]}}})",
            {R"({"k":"c"})", R"({"k":"d"})"},
            {"{}"}},
           {R"({"oneOf":[{"type":"object","properties":{"a":{"const":1}},"required":["a"]},
                         {"type":"object","properties":{"b":{"const":1}},
                          "additionalProperties":false}]})",
            {R"({"a":1})", R"({"b":1})", "{}"},
            {R"({"a":1,"b":1})"}},
           {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", {"1", "1.5"}, {}, {"#/oneOf"}},
           {R"({"oneOf":[{"properties":{"a":{}}},{"type":"integer"}]})",
            {"1", "{}"},
            {},
            {"#/oneOf"}},
       })
    check(one);
}

TEST(ConstraintKeywords, StringsAndNumbersSatisfyAllOfTheirs) {
  for (const KeywordCase& one : {
           KeywordCase{R"({"pattern":"^[a-z]+$","minLength":2,"maxLength":3})",
                       {R"("ab")", R"("abc")"},
                       {R"("a")", R"("abcd")", R"("AB")"}},
           {R"({"pattern":"b","maxLength":2})",
            {R"("b")", R"("xb")", R"("\nb")", R"("éb")"},
            {R"("xxb")", R"("a")"}},
           {R"({"allOf":[{"pattern":"^a"},{"pattern":"z$"},{"pattern":"[0-9]"}]})",
            {R"("a1z")"},
            {R"("az")", R"("1z")", R"("a1")"}},
           {R"({"format":"date","pattern":"^2024"})", {R"("2024-02-29")"}, {R"("2023-01-01")"}},
           {R"({"format":"uri","maxLength":8})",
            {R"("a:b")", R"("ab://c/d")"},
            {R"("ab")", R"("ab://c/de")"}},
           {R"({"format":"uri"})",
            {R"("https://user@example.com:80/a/b?q=1#f")", R"("urn:isbn:0451450523")",
             R"("http://[::1]/")"},
            {R"("/a/b")", R"("http://a b")", R"("http://[::g]/")"}},
           {R"({"type":"integer","minimum":0,"exclusiveMinimum":true,"maximum":3})",
            {"1", "3"},
            {"0", "4"}},
           {R"({"type":"integer","minimum":0,"exclusiveMinimum":false})", {"0"}, {"-1"}},
           {R"({"type":"integer","format":"int32"})",
            {"2147483647", "-2147483648"},
            {"2147483648", "-2147483649"}},
           {R"({"type":"integer","format":"int64"})", {"2147483648"}, {"1.5"}},
           {R"({"type":"integer","maximum":9223372036854775807})",
            {"9223372036854775807", "-999999999999999999"},
            {"9223372036854775808", "-1000000000000000000"}},
           {R"({"type":"integer","minimum":9223372036854775806})",
            {"9223372036854775806", "9999999999999999999"},
            {"9223372036854775805", "999999999999999999"}},
           {R"({"allOf":[{"multipleOf":4},{"multipleOf":6}],"type":"number"})", {"12"}, {"8", "6"}},
           {R"({"type":"integer","multipleOf":0.1})", {"7"}, {"7.5"}},
       })
    check(one);
}

TEST(ConstraintKeywords, NotesWhatItDoesNotHold) {
  for (const KeywordCase& one : {
           KeywordCase{R"({"type":"string","title":"t","description":"d","default":1,"examples":[],
                           "deprecated":true,"x-order":1,"$comment":"c"})",
                       {"\"\""},
                       {"1"}},
           {R"({"type":"array","uniqueItems":false})", {"[1,1]"}, {}},
           {R"({"type":"array","uniqueItems":true,"contains":{}})",
            {"[1,1]"},
            {},
            {"#/contains", "#/uniqueItems"}},
           {R"({"type":"string","uniqueItems":true,"minimum":1})", {"\"a\""}, {"1"}},
           {R"({"not":{},"if":{},"then":{},"else":{},"unknown":1,"$dynamicRef":"#x"})",
            {"1"},
            {},
            {"#/$dynamicRef", "#/if", "#/not", "#/unknown"}},
           {R"({"type":"object","dependentRequired":{},"propertyNames":{}})",
            {"{}"},
            {"1"},
            {"#/dependentRequired", "#/propertyNames"}},
           {R"({"properties":{"a/b":{"type":"string","format":"phone","maxLength":2}}})",
            {R"({"a/b":"ab"})"},
            {R"({"a/b":"abc"})"},
            {"#/properties/a~1b/format"}},
           {R"({"type":"string","pattern":"(?=a)b","maxLength":1})",
            {R"("b")"},
            {R"("bb")"},
            {"#/pattern"}},
           {R"({"type":"string","maxLength":1000000})", {R"("b")"}, {"1"}, {"#/maxLength"}},
           {R"({"type":"number","multipleOf":0.3,"minimum":1})",
            {"1.5"},
            {"0.5"},
            {"#/multipleOf"}},
           {R"({"type":"integer","multipleOf":1001})", {"7"}, {}, {"#/multipleOf"}},
           {R"({"type":"integer","format":"bigint"})", {"7"}, {}, {"#/format"}},
           {R"({"minProperties":2})", {R"({"a":1,"a":2})"}, {R"({"a":1})"}, {"#/minProperties"}},
           {R"({"patternProperties":{"^a":{},"b$":{}},"properties":{}})",
            {R"({"ab":1,"a":2,"b":3})"},
            {R"({"ba":1})"},
            {"#/patternProperties"}},
           {R"({"const":[1],"maxItems":0})", {"[1]"}, {"[]"}, {"#/maxItems"}},
           {R"({"type":"any"})", {"[1]", "null"}, {}, {"#/type"}},
           {R"({"type":["null","file"]})", {"null", "3"}, {}, {"#/type"}},
           {R"({"type":"integer","minimum":100000000000000000000})", {"7"}, {}, {"#/minimum"}},
           {R"({"type":"array","minItems":200000,"items":{"const":1}})",
            {},
            {"[1]"},
            {"#/minItems"}},
           {R"({"properties":{"a":{"$ref":"https://example.com/a.json"}}})",
            {R"({"a":[1]})"},
            {},
            {"#/properties/a/$ref"}},
           {R"({"properties":{"a":{"$ref":"#n"},"b":{"$ref":"m"}},
                "$defs":{"x":{"$anchor":"n","type":"null"},"y":{"$id":"m","const":2}}})",
            {R"({"a":null,"b":2})"},
            {R"({"a":1})", R"({"b":1})"}},
           {R"({"type":"object","properties":null,"required":null,"maxProperties":null})",
            {"{}", R"({"a":1})"},
            {"1"}},
       })
    check(one);
}

TEST(ConstraintKeywords, NamesWhatIsWrong) {
  const auto has = [](const std::string& schema, std::string_view part) {
    const std::string error = keyword_error(schema);
    EXPECT_NE(error.find(part), error.npos) << schema << ": " << error;
  };
  has(R"({"$ref":"#"})", "at '#': no value satisfies it: '$ref' leads from '#' back to it");
  has(R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"allOf":[{"$ref":"#/$defs/a"}]}}})",
      "'$ref' leads from '#/$defs/");
  has(R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})", "endless");
  has(R"({"$ref":"#/$defs/x"})", "at '#': '$ref' is '#/$defs/x', and there is no '$defs' in '#'");
  has(R"({"properties":{"a":{"type":3}}})", "at '#/properties/a': 'type' is neither a string");
  has(R"({"type":"integer","minimum":"3"})", "'minimum' is not a number");
  has(R"({"type":"integer","minimum":3,"maximum":2})", "no integer of up to 18 digits");
  has(R"({"minItems":3,"maxItems":2,"items":{}})", "'minItems' 3 is above 'maxItems' 2");
  has(R"({"required":["a"],"properties":{"a":false}})", "no value satisfies it");
  has(R"({"allOf":[{"type":"string"},{"type":"null"}]})", "its conditions exclude each other");
}

// Each check is fast, or fails with an error that names the limit.
TEST(ConstraintKeywords, HasBudgets) {
  const auto numbered = [](int count, auto&& make) {
    std::string all;
    for (int i = 0; i < count; ++i) all += (i > 0 ? "," : "") + make(std::to_string(i));
    return all;
  };
  // Each union of the conjunction doubles the alternatives.
  const std::string twice = R"({"anyOf":[{"minimum":1},{"maximum":9}]})";
  const auto unions = [&](int count) {
    return R"({"allOf":[)" + numbered(count, [&](const std::string&) { return twice; }) + "]}";
  };
  EXPECT_EQ(keyword_error(unions(6)), "none");
  EXPECT_NE(keyword_error(unions(40)).find("takes more than 1000000 steps"), std::string::npos);
  const std::string pattern = R"("pattern":"^([a-z]{1000}){1000}$")";
  const std::string error = keyword_error(R"({"properties":{"p":{)" + pattern + "}}}");
  EXPECT_NE(error.find("at '#/properties/p': the pattern '^([a-z]"), std::string::npos) << error;
  EXPECT_NE(error.find("more than 400000 states"), std::string::npos) << error;

  const auto properties = numbered(
      2000, [](const std::string& i) { return "\"p" + i + R"(":{"$ref":"#/$defs/d)" + i + "\"}"; });
  const auto definitions = numbered(2000, [](const std::string& i) {
    return "\"d" + i +
           R"(":{"type":"object","properties":{"x":{"$ref":"#"},"y":{"type":"string"}}})";
  });
  check({R"({"properties":{)" + properties + R"(},"$defs":{)" + definitions + "}}",
         {R"({"p7":{"x":{"p1999":{"y":""}}}})"},
         {R"({"p2000":{}})"}});
  // One enum is used in many unions.
  check({R"({"properties":{)" +
             numbered(300,
                      [](const std::string& i) {
                        return "\"p" + i + R"(":{"anyOf":[{"$ref":"#/$defs/e"},{"type":"null"}]})";
                      }) +
             R"(},"$defs":{"e":{"enum":[)" +
             numbered(1000, [](const std::string& i) { return "\"value " + i + "\""; }) + "]}}}",
         {R"({"p7":"value 999","p8":null})"},
         {R"({"p7":"value 1000"})"}});
  // Patterns from many enums, each of which costs steps.
  const std::string many =
      R"({"pattern":"^([a-z]?){1000}$","enum":[)" +
      numbered(100, [](const std::string& i) { return "\"abcdef" + i + "\""; }) + "]}";
  const auto enums = [&](int count) {
    return R"({"prefixItems":[)" + numbered(count, [&](const std::string&) { return many; }) + "]}";
  };
  EXPECT_NE(keyword_error(enums(4)).find("takes more than 1000000 steps"), std::string::npos);
  check({R"({"enum":[)" + numbered(20'000, [](const std::string& i) { return i; }) + "]}",
         {"19999", "0"},
         {"20000"}});
  check({R"({"items":{},"maxItems":100000})", {"[]", "[1,2]"}, {"{}"}});
  check({R"({"type":"string","maxLength":100000})", {"\"abc\""}, {"1"}});
}

// Large bounds that need too many states together are reported as not enforced. Small ones are
// enforced.
TEST(ConstraintKeywords, NotesLargeBoundsRatherThanRefusing) {
  std::string properties;
  Texts notes;
  for (int i = 0; i < 8; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    properties += (i > 0 ? ",\"" : "\"") + name + R"(":{"type":"string","maxLength":50000})";
    notes.push_back("#/properties/" + name + "/maxLength");
  }
  properties += R"(,"z":{"type":"string","maxLength":2})";
  check({R"({"properties":{)" + properties + "}}",
         {R"({"b":"bb","z":"zz"})"},
         {R"({"z":"zzz"})"},
         notes});
  const std::string five = R"({"type":"string","maxLength":99999},)";
  const Json strict = Json::parse(R"({"type":"array","items":false,"prefixItems":[)" + five + five +
                                  five + five + five.substr(0, five.size() - 1) + "]}");
  try {
    Grammar::from_json_schema(strict, true);
    ADD_FAILURE() << "no error";
  } catch (const GrammarLimit& limit) {
    EXPECT_NE(std::string_view(limit.what()).find("at '#/prefixItems/"), std::string_view::npos)
        << limit.what();
  }
}

TEST(ConstraintKeywords, CallsOfToolsHaveSchemasOfTheirOwn) {
  const std::vector<ToolSchema> tools = {
      {"f", Json::parse(R"({"type":"object","properties":{"x":{"$ref":"#/$defs/e"}},
                            "$defs":{"e":{"enum":[1,2],"not":{}}}})")},
      {"g", Json::parse(R"({"type":"object","properties":{},"additionalProperties":false})"),
       true}};
  const auto grammar = Grammar::from_tool_calls(tools);
  for (const char* text : {R"({"name":"f","arguments":{"x":2}})",
                           R"({"name": "f", "arguments": {}})", R"({"name":"g","arguments":{}})"})
    EXPECT_EQ(reads(grammar, text), 1) << text;
  for (const char* text : {R"({"name":"g","arguments":{"x":2}})", R"({"name":"h","arguments":{}})",
                           R"({"arguments":{},"name":"f"})", R"({"name":"f"})"})
    EXPECT_NE(reads(grammar, text), 1) << text;
  EXPECT_EQ(grammar->unenforced(), Texts{"f#/$defs/e/not"});
  try {
    Grammar::from_tool_calls(std::vector<ToolSchema>{{"f", Json::parse(R"({"not":{}})"), true}});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find("at 'f#': the keyword 'not'"),
              std::string_view::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace megatron::inference
