// Values as Python shows them, and operators at their limits.
#include <gtest/gtest.h>

#include "jinja/conversions.h"
#include "jinja/unicode.h"
#include "render.h"

namespace megatron::jinja {
namespace {

TEST(Repr, Reals) {
  EXPECT_EQ(repr_of_real(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(repr_of_real(1e15), "1000000000000000.0");
  EXPECT_EQ(repr_of_real(1e16), "1e+16");
  EXPECT_EQ(repr_of_real(1e22), "1e+22");
  EXPECT_EQ(repr_of_real(1e-4), "0.0001");
  EXPECT_EQ(repr_of_real(1e-5), "1e-05");
  EXPECT_EQ(repr_of_real(5e-324), "5e-324");
  EXPECT_EQ(repr_of_real(-0.0), "-0.0");
  EXPECT_EQ(repr_of_real(1.7976931348623157e308), "1.7976931348623157e+308");
}

TEST(Repr, Texts) {
  EXPECT_EQ(repr_of_text("it's"), "\"it's\"");
  EXPECT_EQ(repr_of_text("'\""), "'\\'\"'");
  EXPECT_EQ(repr_of_text("é日\u00a0\u200b\n\x7f"), "'é日\\xa0\\u200b\\n\\x7f'");
}

TEST(Repr, Containers) {
  EXPECT_EQ(rendered("{{ [1, 2.0, none, true, 'a', (1,), {'k': []}] }}"),
            "[1, 2.0, None, True, 'a', (1,), {'k': []}]");
}

TEST(Unicode, CaseBeyondAscii) {
  EXPECT_EQ(to_upper("straße ﬀ ÿ"), "STRASSE FF Ÿ");
  EXPECT_EQ(to_lower("ΟΔΥΣΣΕΥΣ ÀÉ"), "οδυσσευς àé");
  EXPECT_EQ(to_title("éCOLE ǆ ΑΣ o'neil"), "École ǅ Ας O'Neil");
  EXPECT_EQ(to_capitalized("ßA"), "Ssa");
}

TEST(Unicode, Utf8) {
  EXPECT_TRUE(is_valid_utf8("aé日👩"));
  for (const char* bad : {"\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xc3", "\xf0\x9f\x91", "\xff"}) {
    EXPECT_FALSE(is_valid_utf8(bad)) << bad;
  }
  EXPECT_EQ(count_code_points("aé日👩"), 4);
  EXPECT_EQ(substring("aé日👩", 1, 3), "é日");
}

TEST(Numbers, BeyondSixtyFourBits) {
  EXPECT_EQ(rendered("{{ 9223372036854775807 }}"), "9223372036854775807");
  EXPECT_EQ(rendered("{{ 9223372036854775808 }}"),
            "line 1: the integer 9223372036854775808 has more than 64 bits");
  for (const char* large : {"9223372036854775807 + 1", "10 ** 30", "4611686018427387904 * 2",
                            "-9223372036854775807 - 2", "-(-9223372036854775807 - 1)",
                            "(-9223372036854775807 - 1) // -1"}) {
    EXPECT_EQ(rendered("{{ " + std::string(large) + " }}"),
              "line 1: an integer does not fit in 64 bits; use a float");
  }
  EXPECT_EQ(rendered("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
  EXPECT_EQ(rendered("{{ (-9223372036854775807 - 1) | abs }}").substr(0, 31),
            "line 1: an integer does not fit");
}

TEST(Undefined, AsJinja2) {
  EXPECT_EQ(rendered("{{ x }}{{ x | length }}{{ x | list }}{{ 'y' if x }}"), "0[]");
  EXPECT_EQ(rendered("{{ x + 1 }}"), "line 1: 'x' is undefined");
  EXPECT_EQ(rendered("{{ x() }}"), "line 1: 'x' is undefined");
  EXPECT_EQ(rendered("{{ m.a.b }}", R"({"m": {}})"), "line 1: 'dict object' has no attribute 'a'");
  EXPECT_EQ(rendered("{{ m[3].b }}", R"({"m": []})"), "line 1: list object has no element 3");
}

TEST(Sandbox, NothingChanges) {
  EXPECT_EQ(rendered("{{ m.append(1) }}", R"({"m": []})"),
            "line 1: 'list object' has no attribute 'append'");
  EXPECT_EQ(rendered("{{ ''.__class__.__mro__ }}"),
            "line 1: 'str object' has no attribute '__class__'");
  EXPECT_EQ(rendered("{% set n = namespace() %}{% set n._x = 1 %}").substr(0, 49),
            "line 1: Chat templates cannot store underscore-pr");
}

TEST(Iterators, AreReadOnce) {
  EXPECT_EQ(rendered("{% set i = [1, 2] | map('string') %}{{ i | list }}{{ i | list }}"
                     "{{ 'true' if i }}"),
            "['1', '2'][]true");
  EXPECT_EQ(rendered("{{ [1] | map('string') | length }}"),
            "line 1: object of type 'generator' has no len()");
}

TEST(Json, Styles) {
  const std::string v = R"({"v": {"b": [1, {"c": "é<&\u2028"}], "a": 1.0}})";
  EXPECT_EQ(rendered("{{ v | tojson }}", v), "{\"b\": [1, {\"c\": \"é<&\u2028\"}], \"a\": 1.0}");
  EXPECT_EQ(rendered("{{ v | tojson(indent=1, sort_keys=true) }}", v),
            "{\n \"a\": 1.0,\n \"b\": [\n  1,\n  {\n   \"c\": \"é<&\u2028\"\n  }\n ]\n}");
  EXPECT_EQ(rendered("{{ '👩é' | tojson(ensure_ascii=true) }}"), "\"\\ud83d\\udc69\\u00e9\"");
}

}  // namespace
}  // namespace megatron::jinja
