// Hostile templates end with an error that names the limit, and leak nothing.
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
  // A key of 2^60 tuples, each of which contains the previous one twice.
  const std::string pairs =
      "{% set n = namespace(x=(1,)) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}"
      "{% endfor %}";
  for (const char* use :
       {"{n.x: 1} | length", "n.x in {}", "{}.get(n.x)", "dict([[n.x, 1]])",
        "[n.x] | unique | list | length", "n.x | string", "'%s' % n.x", "n.x | tojson"})
    expect_error(pairs + "{{ " + use + " }}", "limit `");
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
  for (const char* wide :
       {"'%999999999d' % 1", "'%-999999999s' % 1", "'%.999999999d' % 1", "'%*d' % (999999999, 1)",
        "'{:>999999999}'.format(1)", "'{:0999999999,}'.format(1)", "'{:{}}'.format('a', 999999999)",
        "'a'.center(999999999)", "'1'.zfill(999999999)", "'a' | center(999999999)",
        "'\\t'.expandtabs(999999999)"}) {
    expect_error("{{ " + std::string(wide) + " }}", "(limit `output_bytes`)");
  }
  expect_error("{{ '%.999999999f' % 1 }}",
               "a precision of 999999999 is too large; the limit is 10000");
  expect_error("{{ '%99999999999999999999d' % 1 }}", "Too many decimal digits in format string");
  expect_error("{{ (['aa'] * 90000) | join('b' * 1000) }}", "(limit `output_bytes`)");
  expect_error("{{ ('b' * 1000).join(['aa'] * 90000) }}", "(limit `output_bytes`)");
  expect_error("{{ 'a' | indent(99999999) }}", "the limit is 1000");
  expect_error("{{ [1] * 4611686018427387904 }}", "too long");
}

// Memory of live values stays below 40 MB, where each of these templates would take gigabytes.
TEST(Limits, LiveBytes) {
  constexpr Limits kLive{.steps = 5'000'000, .output_bytes = 1 << 20, .live_bytes = 4 << 20};
  const std::string grow = "{% set n = namespace(x=[1]) %}{% for i in range(40) %}";
  for (const std::string& source : {
           grow + "{% set n.x = n.x + n.x %}{% endfor %}",
           grow + "{% set n.x = n.x * 2 %}{% endfor %}",
           grow + "{% set n.x = (n.x ~ n.x) | list %}{% endfor %}",
           std::string("{% set n = namespace(x=[]) %}{% for i in range(90) %}"
                       "{% set n.x = [n.x, 'a' * 100000] %}{% endfor %}"),
           std::string("{{ [1] | batch(1000000, 0) | list }}"),
           std::string("{{ [1] | slice(10000000) | list }}"),
           std::string("{{ ('a' * 1000000) | list }}"),
           std::string("{{ ('a ' * 400000).split() | length }}"),
           std::string("{{ ('a\\n' * 400000).splitlines() | length }}"),
           std::string("{{ ([1] * 90000) | map('attr', 'bit_length') | list | length }}"),
           std::string("{{ ('a' * 90000) | map('upper') | list | length }}"),
           std::string("{% macro m(n) %}{{ 'a' * 100000 }}{{ m(n) }}{% endmacro %}{{ m(1) }}"),
           std::string("{% for i in range(90000) %}{% set x = namespace() %}{% endfor %}"),
           std::string("{% for i in range(90000) %}{% macro m() %}{% endmacro %}{% endfor %}"),
           std::string("{{ [[1] * 100000, [2] * 100000] }}"),
       }) {
    const std::string result = rendered(source, "{}", kLive);
    EXPECT_NE(result.find("(limit `live_bytes`)"), std::string::npos) << source << "\n"
                                                                      << result.substr(0, 200);
  }
  // Values that are no longer needed do not count.
  EXPECT_EQ(
      rendered("{% for i in range(30) %}{% set x = [0] * 100000 %}{% endfor %}ok", "{}", kLive),
      "ok");
}

TEST(Limits, Recursion) {
  expect_error("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "(limit `depth`)");
  expect_error("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
               "(limit `depth`)");
  EXPECT_EQ(rendered("{% set n = namespace() %}{% for i in range(20000) %}{% set p = n.x %}"
                     "{% for j in [1] recursive %}{% set n.x = loop %}{% endfor %}{% endfor %}ok"),
            "ok");
}

TEST(Limits, RepeatedParts) {  // a value of few parts whose text is exponentially long
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
