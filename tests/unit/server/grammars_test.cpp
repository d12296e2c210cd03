// Forms of texts: schemas made strict, and grammars compiled once.
#include "server/grammars.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tokenizers/plain_codecs.h"

namespace megatron::server {
namespace {

TEST(StrictSchema, ObjectsHaveAllOfTheirProperties) {
  const Json strict = strict_schema(Json::parse(
      R"({"type": "object", "description": "d", "required": ["a"],
          "properties": {"a": {"type": "string", "default": "x"},
                         "b": {"type": "array", "items": {"properties": {"title": {"type": "null"}}}},
                         "c": {"anyOf": [{"type": "object"}, {"type": "integer"}]}}})"));
  EXPECT_EQ(strict, Json::parse(R"(
      {"type": "object",
       "properties": {"a": {"type": "string"},
                      "b": {"type": "array",
                            "items": {"properties": {"title": {"type": "null"}}, "type": "object",
                                      "required": ["title"], "additionalProperties": false}},
                      "c": {"anyOf": [{"type": "object", "properties": {}, "required": [],
                                       "additionalProperties": false}, {"type": "integer"}]}},
       "required": ["a", "b", "c"], "additionalProperties": false})"));
  EXPECT_EQ(strict_schema(Json::parse(R"({"enum": [1]})")), Json::parse(R"({"enum": [1]})"));
}

TEST(Grammars, AreCompiledOnce) {
  Grammars grammars(tokenizers::Tokenizer(tokenizers::make_byte_codec(256)));
  const SharedGrammar first = grammars.regex("a+");
  EXPECT_EQ(grammars.regex("a+"), first);
  EXPECT_NE(grammars.regex("b+"), first);
  EXPECT_EQ(grammars.choice({"x.", "y"}), grammars.regex("x\\.|y"));
  for (int i = 0; i < 100; ++i) grammars.regex("c{" + std::to_string(i + 1) + "}");
  EXPECT_NE(grammars.regex("a+"), first) << "it was forgotten";
  EXPECT_THROW(grammars.regex("("), Error);
}

TEST(Grammars, NeedTheBytesOfTokens) {
  Grammars grammars(tokenizers::Tokenizer(tokenizers::make_null_codec(10, 0)));
  EXPECT_THROW(grammars.json_object(), Error);
}

}  // namespace
}  // namespace megatron::server
