// Hostile templates end with an error that names the limit, and leave nothing behind.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "hang_limit.h"
#include "render.h"

namespace megatron::jinja {
namespace {

constexpr Limits kSmall{.steps = 200'000, .output_bytes = 1 << 20};

void expect_error(const std::string& source, const std::string& part) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string result = rendered(source, "{}", kSmall);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(testing::kHangSeconds))
      << source;
  EXPECT_EQ(result.substr(0, 5), "line ") << source;
  EXPECT_NE(result.find(part), std::string::npos) << source.substr(0, 200) << "\n" << result;
}

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST(Limits, Steps) {
  const std::string loop = "{% for i in range(90000) %}";
  expect_error(loop + loop + "{% endfor %}{% endfor %}", "(limit `steps`)");
  expect_error(loop + "{% set x = range(90000) | list %}{% endfor %}", "(limit `steps`)");
  expect_error(loop + "{% if 'a' * 100000 == 'b' %}{% endif %}{% endfor %}", "(limit `steps`)");
  expect_error(loop + "{{ (['a'] * 90000) | sort | length }}{% endfor %}", "(limit `steps`)");
}

TEST(Limits, Output) {
  expect_error("{{ 'a' * 100000000 }}", "(limit `output_bytes`)");
  expect_error(
      "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}"
      "{% endfor %}",
      "(limit `output_bytes`)");
  expect_error("{% for i in range(90000) %}" + repeated("a", 100) + "{% endfor %}",
               "(limit `output_bytes`)");
  expect_error("{{ ('a' * 100000) | replace('', 'b' * 100000) }}", "limit");
  expect_error("{{ '%999999999d' | format(1) }}", "is not supported");
  expect_error("{{ 'a' | indent(99999999) }}", "the limit is 1000");
  expect_error("{{ [1] * 4611686018427387904 }}", "too long");
}

TEST(Limits, RepeatedParts) {  // a value of few parts that is shown as exponentially many
  const std::string doubled =
      "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor "
      "%}";
  expect_error(doubled + "{{ n.x }}", "limit");
  expect_error(doubled + "{{ n.x | tojson }}", "limit");
  expect_error(doubled + "{% set a = n.x %}" + doubled + "{{ a == n.x }}", "limit");
}

TEST(Limits, Depth) {
  expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "(limit `depth`)");
  expect_error(
      "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}"
      "{% endfor %}",
      "values are nested deeper than");
  expect_error("{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}", "nests deeper");
  expect_error("{{ " + repeated("[", 5000), "nests deeper");
  expect_error("{{ " + repeated("not ", 5000) + "1 }}", "nests deeper");
  expect_error("{{ " + repeated("-", 5000) + "1 }}", "nests deeper");
  expect_error("{{ 1" + repeated(" + 1", 5000) + " }}", "in a chain");
  expect_error("{{ x" + repeated(".x", 5000) + " }}", "in a chain");
  expect_error(repeated("{% if 1 %}", 5000), "tags nest deeper");
  expect_error("{{ 'a' | map(" + repeated("'map', ", 3000) + "'string') | list }}", "limit");
}

TEST(Limits, LongChainsOfObjectsEnd) {
  const std::string loop = "{% set n = namespace(x=none) %}{% for i in range(50000) %}";
  EXPECT_EQ(rendered(loop + "{% set n.x = namespace(p=n.x) %}{% endfor %}ok"), "ok");
  EXPECT_EQ(rendered(loop + "{% set p = n.x %}{% macro m() %}{{ p }}{% endmacro %}"
                            "{% set n.x = m %}{% endfor %}ok"),
            "ok");
  EXPECT_EQ(rendered("{% set n = namespace() %}{% set n.n = n %}ok"), "ok");
  EXPECT_EQ(rendered("{% for i in [1] %}{% if loop.changed([loop]) %}ok{% endif %}{% endfor %}"),
            "ok");
  expect_error(
      "{% set n = namespace(x=1) %}{% for i in range(5000) %}{% for j in [n.x] %}"
      "{% set n.x = loop %}{% endfor %}{% endfor %}",
      "values are nested deeper than");
}

TEST(Limits, Ranges) {
  expect_error("{{ range(100001) }}", "The sandbox blocks ranges larger than MAX_RANGE (100000).");
  expect_error("{{ range(-9223372036854775807, 9223372036854775807) }}", "Range too big");
  expect_error("{{ range(1, 2, 0) }}", "must not be zero");
}

TEST(Limits, LongTemplates) { expect_error(repeated("a", (4 << 20) + 1), "the limit is 4194304"); }

}  // namespace
}  // namespace megatron::jinja
