// Text, tags and whitespace; scopes; errors with their lines.
#include <gtest/gtest.h>

#include "render.h"

namespace megatron::jinja {
namespace {

TEST(Whitespace, BlockTagsTakeTheirLine) {
  EXPECT_EQ(rendered("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(rendered("a\n  {%+ if true %}\nb\n  {%+ endif +%}\nc"), "a\n  b\n  \nc");
  EXPECT_EQ(rendered("x  {% if true %}y{% endif %}"), "x  y");  // not at the beginning of a line
}

TEST(Whitespace, MinusTakesAll) {
  EXPECT_EQ(rendered("a \n\n {{- 'b' -}} \n\t c"), "abc");
  EXPECT_EQ(rendered("a \n {%- if true -%} \n b \n {%- endif -%} \n c"), "abc");
  EXPECT_EQ(rendered("a\u3000{#- gone -#}\u2003b"), "ab");
}

TEST(Whitespace, VariablesKeepTheirLine) {
  EXPECT_EQ(rendered("  {{ 1 }}\n  {{ 2 }}\n"), "  1\n  2");
}

TEST(Whitespace, CommentsAndRaw) {
  EXPECT_EQ(rendered("  {# a #}\nb"), "b");
  EXPECT_EQ(rendered("{% raw %}{{ x }}{% if %}{% endraw %}"), "{{ x }}{% if %}");
  EXPECT_EQ(rendered("{%- raw -%}  x  {%- endraw -%}  y"), "xy");
}

TEST(Whitespace, NewlinesOfAllSystems) {
  EXPECT_EQ(rendered("a\r\n{% if true %}\r\nb\r{% endif %}\nc\r\n"), "a\nb\nc");
}

TEST(Scopes, LoopsSeeAndDoNotLeak) {
  EXPECT_EQ(rendered("{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 2 %}{{ x }}{% endfor %}"
                     "{{ x }}"),
            "12121");
  EXPECT_EQ(rendered("{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}"
                     "{% endfor %}{{ n.x }}"),
            "4");
  EXPECT_EQ(rendered("{% if true %}{% set x = 2 %}{% endif %}{{ x }}"), "2");
  EXPECT_EQ(rendered("{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}"), "");
}

TEST(Scopes, MacrosSeeWhereTheyStand) {
  EXPECT_EQ(rendered("{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}"
                     "{% for x in [3] %}{{ m() }}{% endfor %}"),
            "22");
}

TEST(Loops, BreakAndContinue) {
  EXPECT_EQ(rendered("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
                     "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
            "023");
}

TEST(Generation, SpansCountCodePoints) {
  const Rendering rendering =
      Template::parse(
          "é{% generation %}日本{% endgeneration %}x{% generation %}y{% endgeneration %}", "test")
          .render({});
  EXPECT_EQ(rendering.text, "é日本xy");
  const std::vector<std::pair<int64_t, int64_t>> spans = {{1, 3}, {4, 5}};
  EXPECT_EQ(rendering.generation, spans);
}

TEST(Errors, NameTemplateAndLine) {
  try {
    Template::parse("a\nb\n{{ x.y }}", "models/t.jinja").render({});
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_STREQ(error.what(), "template models/t.jinja, line 3, attribute 'y': 'x' is undefined");
    EXPECT_FALSE(error.raised());
  }
  try {
    Template::parse("\n{{ raise_exception('no') }}", "t").render({});
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.reason(), "no");
    EXPECT_TRUE(error.raised());
  }
}

TEST(Errors, Syntax) {
  EXPECT_EQ(rendered("\n{% if x %}\n{% for y in z %}"),
            "line 3: Unexpected end of template. Jinja was looking for the following tags: "
            "'endfor' or 'else'. The innermost block that needs to be closed is 'for', of line 3.");
  EXPECT_EQ(rendered("{% foo %}"), "line 1: Encountered unknown tag 'foo'.");
  EXPECT_EQ(rendered("{{ a b }}"), "line 1: expected token 'end of print statement', got 'b'");
  EXPECT_EQ(rendered("{{ 'a"), "line 1: the string that begins with ' is not terminated");
  EXPECT_EQ(rendered("{{ (1] }}"), "line 1: unexpected ']', expected ')'");
  EXPECT_EQ(rendered("{# a"), "line 1: Missing end of comment tag");
  EXPECT_EQ(rendered("{% raw %}"), "line 1: Missing end of raw directive");
  EXPECT_EQ(rendered("{{ '\\N{NOPE}' }}"),
            "line 1: the escape \\N{NOPE} does not name a character");
  EXPECT_EQ(rendered("\xff"), "line 1: the template is not valid UTF-8");
  EXPECT_EQ(rendered("{% include 'a' %}"),
            "line 1: the tag 'include' is not supported, because a chat template is a single file; "
            "supported are if, for, set, macro, call, filter, with, print, generation, raw, break "
            "and continue");
  EXPECT_EQ(rendered("{% macro m() %}{% break %}{% endmacro %}"), "line 1: 'break' outside loop");
}

TEST(Errors, LineOfTheCallThatFails) {
  EXPECT_EQ(rendered("{% macro m() %}\n{{ 1 }}\n{% endmacro %}\n{{ m() }}{{ 1 / 0 }}"),
            "line 4: division by zero");
}

TEST(Errors, WhatIsLeftOutIsNamed) {
  const auto begins = [](const std::string& source, const std::string& reason) {
    EXPECT_EQ(rendered(source).substr(0, reason.size()), reason) << source;
  };
  begins("{{ 1 }}\n{{ 'a' | nope(9) }}", "line 2: filter 'nope' is not supported; supported are");
  begins("{{ [1] | random }}", "line 1: filter 'random' is not supported: chats are rendered");
  begins("{{ 1 is nope }}", "line 1: test 'nope' is not supported; supported are");
  begins("\n{{ 'a'.nope(3) }}", "line 2: 'str object' has no attribute 'nope'");
  begins("{{ 'a'.encode() }}",
         "line 1: str.encode() is not supported: templates have no values of");
  begins("{% autoescape true %}{% endautoescape %}", "line 1: autoescape is supported only with");
  begins("{% block a %}{% endblock %}", "line 1: the tag 'block' is not supported, because");
}

TEST(Errors, NameTheConstruct) {
  const auto place = [](const std::string& source) {
    try {
      Template::parse(source, "t").render({{"x", Value()}});
    } catch (const TemplateError& error) {
      return error.place();
    }
    return std::string("no error");
  };
  EXPECT_EQ(place("\n{{ [x, 1 ] | sort }}"), "line 2, filter 'sort'");
  EXPECT_EQ(place("{{ x is divisibleby 2 }}"), "line 1, test 'divisibleby'");
  EXPECT_EQ(place("{{ [1,\n'a' + x] }}"), "line 2, operator +");
  EXPECT_EQ(place("{{ x < 1 }}"), "line 1, comparison");
  EXPECT_EQ(place("{{ ['a'][0:'b'] }}"), "line 1, slice");
  EXPECT_EQ(place("{{ x.strip() }}"), "line 1, call of .strip");
  EXPECT_EQ(place("{{ y.a.b }}"), "line 1, attribute 'a'");
  EXPECT_EQ(place("{% for i in [1] %}{{ i }}{% endfor %}\n{% for i in x %}{% endfor %}"),
            "line 2, {% for %}");
  EXPECT_EQ(place("{% set a, b = [1] %}"), "line 1, {% set %}");
  EXPECT_EQ(place("{% macro m() %}\n{{ 1 // 0 }}{% endmacro %}{{ m() ~ 'a' }}"),
            "line 2, operator //");
  EXPECT_EQ(place("{% macro m() %}{{ 1 }}{% endmacro %}{{ m() }}\n{{ m(2) }}"),
            "line 2, call of m");
}

}  // namespace
}  // namespace megatron::jinja
