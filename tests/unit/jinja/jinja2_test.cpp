// Small templates as jinja2 renders them. Each line of jinja2.jsonl has a template `t` and what
// Jinja2 3.1.6 gives for it in the environment of transformers 5.24.0, with the variables of the
// first line: `r`, the text, or `e`, the text of the exception. In Python 3.11, for a template t:
//   from transformers.utils.chat_template_utils import _compile_jinja_template
//   _compile_jinja_template(t).render(**variables)
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "render.h"

namespace megatron::jinja {
namespace {

TEST(Jinja2, RendersTheSame) {
  std::ifstream file(std::string(MEGATRON_TEST_SOURCES) + "/unit/jinja/jinja2.jsonl");
  std::string variables, line;
  std::getline(file, variables);
  int count = 0;
  for (; std::getline(file, line); ++count) {
    const Json expected = Json::parse(line, "jinja2.jsonl");
    const std::string got = rendered(expected["t"].as_string(), variables);
    const Json* error = expected.find("e");
    EXPECT_EQ(got, error == nullptr ? expected["r"].as_string() : "line 1: " + error->as_string())
        << expected["t"].as_string();
  }
  EXPECT_GT(count, 300);
}

}  // namespace
}  // namespace megatron::jinja
