// Compares small templates, which render or raise, with jinja2 configured as in transformers.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/json.h"
#include "jinja/template.h"

namespace megatron::jinja {
namespace {

struct Outcome {
  std::string rendered, error;
};

Outcome outcome_of(const Json& line) {
  Variables variables;
  if (const Json* given = line.find("v")) {
    for (const auto& [name, value] : given->as_object())
      variables.emplace_back(name, Value::from(value));
  }
  try {
    return {Template::parse(line["t"].as_string(), "test").render(variables).text, ""};
  } catch (const TemplateError& error) {
    return {"", error.reason()};
  }
}

TEST(Expressions, EqualJinja2) {
  std::ifstream file(std::string(MEGATRON_GOLDEN) + "/jinja/expressions.jsonl");
  int count = 0;
  for (std::string text; std::getline(file, text); ++count) {
    const Json line = Json::parse(text, "expressions.jsonl");
    const Outcome got = outcome_of(line);
    const Json* error = line.find("e");
    EXPECT_EQ(got.error, error != nullptr ? error->as_string() : "") << line["t"].as_string();
    if (error == nullptr) {
      EXPECT_EQ(got.rendered, line["r"].as_string()) << line["t"].as_string();
    }
  }
  EXPECT_GT(count, 430);
}

}  // namespace
}  // namespace megatron::jinja
