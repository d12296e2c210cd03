// Values in Python's notation, and operators at their limits.
#include <gtest/gtest.h>

#include <random>

#include "jinja/big_integer.h"
#include "jinja/conversions.h"
#include "jinja/numbers.h"
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

TEST(Unicode, PartsAreCodePoints) { EXPECT_EQ(substring("aé日👩", 1, 3), "é日"); }

TEST(Numbers, BeyondSixtyFourBits) {
  const auto shown = [](const std::string& expression) {
    return rendered("{{ " + expression + " }}",
                    R"({"big": 18446744073709551615, "low": -9223372036854775809})");
  };
  EXPECT_EQ(shown("big"), "18446744073709551615");
  EXPECT_EQ(shown("[low, big] | tojson"), "[-9223372036854775809, 18446744073709551615]");
  EXPECT_EQ(shown("big + 1"), "18446744073709551616");
  EXPECT_EQ(shown("big - 18446744073709551615 + 7"), "7");
  EXPECT_EQ(shown("big * low"), "-170141183460469231740910675752738881535");
  EXPECT_EQ(shown("[low // 10, low % 10]"), "[-922337203685477581, 1]");
  EXPECT_EQ(shown("[10 ** 30 // (10 ** 10 + 1), 10 ** 30 % -(10 ** 10 + 1)]"),
            "[99999999990000000000, -1]");
  EXPECT_EQ(shown("[big / 5, big | float, big == big | float, big < big | float]"),
            "[3.6893488147419105e+18, 1.8446744073709552e+19, False, True]");
  EXPECT_EQ(shown("'%d %x' % (big, big) ~ ' {:,}'.format(low)"),
            "18446744073709551615 ffffffffffffffff -9,223,372,036,854,775,809");
  EXPECT_EQ(shown("'99999999999999999999' | int + big"), "118446744073709551614");
  EXPECT_EQ(shown("(-9223372036854775807 - 1) // -1"), "9223372036854775808");
  EXPECT_EQ(shown("[1, 2][big]"), "");
  EXPECT_EQ(shown("'a' * big"), "line 1: cannot fit 'int' into an index-sized integer");
}

TEST(Numbers, HaveUpTo4300Digits) {
  EXPECT_EQ(rendered("{{ (10 ** 4300 - 1) | string | length }}"), "4300");
  const std::string longer = "line 1: an integer has more than 4300 digits, which is the limit";
  EXPECT_EQ(rendered("{{ 10 ** 4300 }}"), longer);
  EXPECT_EQ(rendered("{{ 2 ** (10 ** 30) }}"), longer);
  EXPECT_EQ(rendered("{{ 2 ** (10 ** 9) }}"), longer);
  EXPECT_EQ(rendered("{{ 1 ** (10 ** 30) }}{{ (-1) ** (10 ** 30) }}{{ 0 ** (10 ** 30) }}"), "110");
  EXPECT_EQ(rendered("{% set n = namespace(x=7) %}{% for i in range(99) %}"
                     "{% set n.x = n.x * n.x %}{% endfor %}"),
            longer);
  EXPECT_EQ(rendered("{{ " + std::string(5000, '7') + " }}"),
            "line 1: an integer has 5000 digits; the limit is 4300");
  EXPECT_EQ(rendered("{{ 0x" + std::string(5000, 'f') + " }}"), longer);
}

// (a // b) * b + a % b = a, for random numbers of all sizes. Long division tends to fail for
// quotients of two or three words.
TEST(Numbers, DivisionAndMultiplicationAgree) {
  std::mt19937_64 random(1);
  const auto number = [&] {
    BigInteger value(0);
    const BigInteger word(int64_t{1} << 32);
    for (uint64_t i = random() % 6; i > 0; --i) {
      const uint64_t kind = random() % 3;  // words of all zeros or all ones are the hard cases
      const uint64_t digits = kind == 0 ? 0 : kind == 1 ? 0xFFFFFFFF : random() & 0xFFFFFFFF;
      value = value * word + BigInteger(static_cast<int64_t>(digits));
    }
    return random() % 2 == 0 ? value : -value;
  };
  for (int i = 0; i < 20'000; ++i) {
    const BigInteger a = number(), b = number();
    if (b.is_zero()) continue;
    const auto [quotient, rest] = a.divided(b);
    ASSERT_EQ((quotient * b + rest).compare(a), 0) << a.text() << " / " << b.text();
    ASSERT_TRUE(rest.is_zero() || rest.is_negative() == b.is_negative());
    ASSERT_LT((rest.is_negative() ? -rest : rest).compare(b.is_negative() ? -b : b), 0);
    const std::string digits = a.is_negative() ? a.text().substr(1) : a.text();
    ASSERT_EQ((a.is_negative() ? -BigInteger::parse(digits) : BigInteger::parse(digits)).compare(a),
              0);
  }
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
            "line 1: access to attribute 'append' of 'list' object is unsafe.");
  EXPECT_EQ(rendered("{{ ''.__class__.__mro__ }}"),
            "line 1: access to attribute '__class__' of 'str' object is unsafe.");
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
