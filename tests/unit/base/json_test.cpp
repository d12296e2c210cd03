#include "base/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "base/philox.h"

namespace megatron {
namespace {

std::string error_of(std::string_view text) {
  try {
    Json::parse(text, "x.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_error(std::string_view text, std::string_view part) {
  EXPECT_NE(error_of(text).find(part), std::string::npos) << text << "\n" << error_of(text);
}

TEST(Json, ReadsValuesAndKeepsTheOrderOfKeys) {
  const Json json =
      Json::parse(R"( {"z": 1, "a": [true, false, null, -2, 2.0, 1e3, "x"], "m": {}} )");
  ASSERT_EQ(json.as_object().size(), 3u);
  EXPECT_EQ(json.as_object()[0].first, "z");
  EXPECT_EQ(json.as_object()[1].first, "a");
  EXPECT_EQ(json.as_object()[2].first, "m");
  const Json::Array& a = json["a"].as_array();
  EXPECT_TRUE(a[0].as_bool());
  EXPECT_FALSE(a[1].as_bool());
  EXPECT_TRUE(a[2].is_null());
  EXPECT_EQ(a[3].as_integer(), -2);
  EXPECT_FALSE(a[4].is_integer());
  EXPECT_EQ(a[4].as_integer(), 2);
  EXPECT_EQ(a[5].as_number(), 1000.0);
  EXPECT_EQ(a[6].as_string(), "x");
  EXPECT_TRUE(json["m"].as_object().empty());
}

TEST(Json, ReadsEscapesAndSurrogatePairs) {
  EXPECT_EQ(Json::parse(R"("\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\u0000")").as_string(),
            std::string("\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80\0", 15));
}

TEST(Json, RefusesWithOriginLineAndColumn) {
  expect_error("{\n  \"a\": 1,\n  \"b\": x\n}", "x.json, line 3, column 8");
  expect_error("", "x.json, line 1, column 1");
  expect_error("   ", "x.json, line 1, column 4");
  expect_error("\"\xc3\xa9\xc3\xa9\" x", "line 1, column 6");
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"{",
                           "[",
                           "[1,]",
                           "{\"a\":1,}",
                           "{\"a\" 1}",
                           "{a:1}",
                           "{'a':1}",
                           "tru",
                           "nul",
                           "01",
                           "+1",
                           "1.",
                           ".5",
                           "1e",
                           "-",
                           "0x10",
                           "NaN",
                           "Infinity",
                           "-Infinity",
                           "nan",
                           "\"",
                           "\"\\",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"\\ud800\\u0041\"",
                           "\"\n\"",
                           "\"\x01\"",
                           "\"\xff\"",
                           "\"\xc0\xaf\"",
                           "\"\xed\xa0\x80\"",
                           "\"\xe2\x82\"",
                           "]",
                           "}",
                           ",",
                           "1 2",
                           "[] []",
                           "{} x",
                           "[1] // note",
                           "/**/ 1",
                           "\xfe\xff",
                           "\xef\xbb",
                           "[1}",
                           "{\"a\":1]"}) {
    EXPECT_THROW(Json::parse(text), Error) << text;
  }
}

TEST(Json, RefusesZeroBytesAnywhere) {
  for (const std::string& text :
       {std::string("1\0", 2), std::string("1\0garbage", 9), std::string("\0", 1),
        std::string("[1\0]", 4), std::string("\"\0\"", 3)}) {
    expect_error(text, "zero byte");
  }
}

TEST(Json, RefusesRepeatedKeysWithTheirPlace) {
  expect_error("{\"a\": 1,\n \"b\": 2, \"a\": 3}",
               "x.json, line 2, column 12: the key 'a' is repeated");
  expect_error("[{\"k\": {\"\": 1, \"\\u0061\": 2, \"a\": 3}}]", "'a' is repeated");
  EXPECT_NO_THROW(Json::parse(R"({"a": {"a": {"a": 1}}, "b": {"a": 1}})"));
}

TEST(Json, LimitsDepth) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_NO_THROW(Json::parse(nested(512)));
  expect_error(nested(513), "column 513: nested deeper than 512");
  expect_error(std::string(5'000'000, '['), "nested deeper than 512");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  expect_error(objects, "nested deeper than 512");
}

TEST(Json, IntegersBeyond64BitsKeepTheirDigits) {
  EXPECT_EQ(Json::parse("9223372036854775807").as_integer(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Json::parse("-9223372036854775808").as_integer(), std::numeric_limits<int64_t>::min());
  for (const std::string& text :
       {std::string("9223372036854775808"), std::string("18446744073709551615"),
        std::string("-9223372036854775809"), std::string("1000000000000000019884624838656"),
        std::string(4300, '7'), "-" + std::string(4300, '7')}) {
    const Json json = Json::parse("[" + text + "]").as_array()[0];
    EXPECT_TRUE(json.is_wide_integer() && json.is_number() && !json.is_integer()) << text;
    EXPECT_EQ(json.wide_digits(), text);
    EXPECT_EQ(json.dump(), text);
    EXPECT_EQ(json, Json::wide_integer(text));
    EXPECT_THROW(json.as_integer(), Error) << text;
    if (text.size() < 300) {
      EXPECT_EQ(json.as_number(), std::strtod(text.c_str(), nullptr)) << text;
    } else {
      EXPECT_THROW(json.as_number(), Error);
    }
  }
  EXPECT_FALSE(Json::parse("1e30").is_wide_integer());
  EXPECT_THROW(Json::parse("1e30").as_integer(), Error);
  EXPECT_EQ(Json(std::numeric_limits<uint64_t>::max()).dump(), "18446744073709551615");
  EXPECT_EQ(Json(uint64_t{7}).as_integer(), 7);
}

TEST(Json, RefusesNumbersBeyondItsLimits) {
  const std::string digits(4301, '7');
  expect_error("[1,\n " + digits + "]",
               "line 2, column 2: the integer 777777777777 ... 777777777777 has 4301 "
               "digits; the limit is 4300");
  expect_error("{\"a\": -" + digits + digits, "line 1, column 7: the integer -77777777777 ... ");
  expect_error("[1e999]", "line 1, column 2: the number 1e999 is outside of [-1.8e308, 1.8e308]");
  expect_error("-1.5e4999", "line 1, column 1: the number -1.5e4999 is outside");
  expect_error("1e99999", "line 1, column 1: the number 1e99999 is outside");
}

TEST(Json, RefusesNumbersThatAreNotFinite) {
  expect_error("[1, 1e999]", "x.json, line 1, column 5");
  expect_error("-1e999", "x.json, line 1, column 1");
  EXPECT_EQ(Json::parse("1e-999").as_number(), 0);
  EXPECT_THROW(Json(std::numeric_limits<double>::infinity()).dump(), Error);
  EXPECT_THROW(Json(std::numeric_limits<double>::quiet_NaN()).dump(), Error);
}

TEST(Json, TypedAccessNamesWhatWasFound) {
  const Json json = Json::parse(R"({"a": "text", "b": 1.5})");
  try {
    json["a"].as_integer();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "expected an integer, found a string");
  }
  EXPECT_THROW(json["b"].as_integer(), Error);
  EXPECT_THROW(json["c"], Error);
  EXPECT_THROW(json["a"]["b"], Error);
  EXPECT_THROW(json.as_array(), Error);
  EXPECT_EQ(json.find("c"), nullptr);
  EXPECT_TRUE(json.contains("a"));
}

TEST(Json, SetReplacesInPlaceOrAppends) {
  Json json(Json::Object{});
  json.set("a", 1);
  json.set("b", "x");
  json.set("a", Json::Array{1, 2.5, nullptr});
  EXPECT_EQ(json.dump(), R"({"a": [1, 2.5, null], "b": "x"})");
}

// The texts on the right are the output of Python 3.11's json.dumps with the same arguments.
TEST(Json, WritesAsPythonDoes) {
  const Json json = Json::parse(
      R"({"a":[1,2.0,[],{}],"b":{"c":null,"d":true},"e":"\u00e9\ud83d\ude00\u007f\u0001\"\\/\n"})");
  EXPECT_EQ(json.dump(),
            "{\"a\": [1, 2.0, [], {}], \"b\": {\"c\": null, \"d\": true}, "
            "\"e\": \"\xc3\xa9\xf0\x9f\x98\x80\x7f\\u0001\\\"\\\\/\\n\"}");
  EXPECT_EQ(json.dump(-1, true),
            "{\"a\": [1, 2.0, [], {}], \"b\": {\"c\": null, \"d\": true}, "
            "\"e\": \"\\u00e9\\ud83d\\ude00\\u007f\\u0001\\\"\\\\/\\n\"}");
  EXPECT_EQ(Json::parse(R"({"a":[1,[],{}],"b":{"c":2}})").dump(2),
            "{\n  \"a\": [\n    1,\n    [],\n    {}\n  ],\n  \"b\": {\n    \"c\": 2\n  }\n}");
  EXPECT_EQ(Json::parse("[1,2]").dump(0), "[\n1,\n2\n]");
  const std::pair<double, const char*> numbers[] = {
      {1, "1.0"},
      {-0.0, "-0.0"},
      {0.1, "0.1"},
      {1e15, "1000000000000000.0"},
      {1e16, "1e+16"},
      {1e22, "1e+22"},
      {123456789012345680.0, "1.2345678901234568e+17"},
      {0.0001, "0.0001"},
      {0.00001, "1e-05"},
      {1.5e-7, "1.5e-07"},
      {5e-324, "5e-324"},
      {1.7976931348623157e308, "1.7976931348623157e+308"},
      {1.0 / 3, "0.3333333333333333"}};
  for (const auto& [value, text] : numbers) EXPECT_EQ(Json(value).dump(), text);
}

TEST(Json, NumbersReadBackToTheSameValue) {
  const RandomStream random(1, "json");
  for (uint64_t i = 0; i < 20'000; ++i) {
    const double value = std::bit_cast<double>(random.bits(i));
    if (!std::isfinite(value)) continue;
    const Json back = Json::parse(Json(value).dump());
    ASSERT_FALSE(back.is_integer());
    ASSERT_EQ(std::bit_cast<uint64_t>(back.as_number()), random.bits(i)) << Json(value).dump();
  }
}

TEST(Json, RefusesToWriteWhatIsNotUtf8) {
  for (const char* text :
       {"\xff", "a\x80", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    EXPECT_THROW(Json(text).dump(), Error) << text;
    EXPECT_THROW(Json(text).dump(-1, true), Error) << text;
  }
}

TEST(Json, DamagedTextGivesAValueOrAnErrorNeverMore) {
  const std::string good =
      R"({"a": [1, -2.5e3, "x\u00e9\n"], "b": {"c": null, "d": [true, false]}, "é": "ß"})";
  const RandomStream random(2, "json");
  uint64_t draw = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (uint64_t k = random.bits(draw++) % 4 + 1; k > 0; --k) {
      const uint64_t r = random.bits(draw++);
      const size_t at = (r >> 16) % text.size();
      if (r % 3 == 0) text[at] = static_cast<char>(r >> 8);
      else if (r % 3 == 1) text.erase(at, 1);
      else text.insert(at, 1, good[(r >> 40) % good.size()]);
    }
    try {
      const Json json = Json::parse(text);
      ASSERT_EQ(Json::parse(json.dump()), json) << text;
    } catch (const Error&) {
    }
  }
}

TEST(Json, ReadNamesTheFile) {
  EXPECT_THROW(Json::read("/nonexistent/x.json"), Error);
  const std::string path = ::testing::TempDir() + "megatron_json_test.json";
  write_file(path, "{\"a\":");
  try {
    Json::read(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path + ", line 1, column 6"), std::string::npos)
        << error.what();
  }
}

// transformers before version 5 writes a bare Infinity, and version 5 an object.
TEST(Json, OfPythonMayHaveInfinity) {
  const std::string path = ::testing::TempDir() + "megatron_json_infinity_test.json";
  write_file(path, R"({"limit": [0.0, Infinity], "name\"": "an Infinity"})");
  EXPECT_THROW(Json::read(path), Error);
  EXPECT_EQ(Json::read_python(path),
            Json::parse(R"({"limit": [0.0, {"__float__": "Infinity"}], "name\"": "an Infinity"})"));
  write_file(path, R"({"limit": -Infinity})");
  EXPECT_THROW(Json::read_python(path), Error);
}

TEST(Json, ManyKeysAreReadInReasonableTime) {
  std::string text = "{";
  for (int i = 0; i < 50'000; ++i)
    text += fmt::format("{}\"token{}\": {}", i == 0 ? "" : ", ", i, i);
  const Json json = Json::parse(text + "}");
  EXPECT_EQ(json.as_object().size(), 50'000u);
  EXPECT_THROW(Json::parse(text + ", \"token0\": 1}"), Error);
}

}  // namespace
}  // namespace megatron
