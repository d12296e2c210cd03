// Compares chat templates with the text that transformers rendered.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tokenizers/chat/chat_cases.h"

namespace megatron::tokenizers {
namespace {

const std::string kDirectory = std::string(MEGATRON_GOLDEN) + "/chat";

std::vector<Json> lines_of(const std::string& name) {
  std::ifstream file(kDirectory + "/" + name);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line, name));
  return lines;
}

TEST(ChatCases, AllAreByteIdentical) {
  ChatCases cases(kDirectory);
  const std::vector<Json> lines = lines_of("cases.jsonl");
  ASSERT_EQ(lines.size(), 709u);
  int errors = 0, spans = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto mismatch = cases.check(lines[i]);
    EXPECT_FALSE(mismatch) << "line " << i + 1 << ": " << *mismatch;
    errors += lines[i].contains("error");
    spans += lines[i].contains("generation_spans");
  }
  EXPECT_EQ(errors, 30);
  EXPECT_EQ(spans, 48);
}

TEST(ChatCases, AChangedCaseFails) {
  ChatCases cases(kDirectory);
  const std::vector<Json> lines = lines_of("cases.jsonl");
  const auto changed = [&](const char* needs, auto change) {
    for (Json line : lines) {
      if (!line.contains(needs)) continue;
      change(line);
      return cases.check(line).value_or("passed");
    }
    return std::string("no such case");
  };
  EXPECT_EQ(changed("rendered", [](Json& j) { j.set("colour", "red"); }),
            "unknown field 'colour': the template has no such variable");
  EXPECT_EQ(
      changed("rendered", [](Json& j) { j.set("rendered", "<|im_start|>x"); }),
      "differs from byte 12: expected \"x\", got \"user\\nHello, who are you?<|im_end|>\\n\"");
  EXPECT_EQ(changed("error", [](Json& j) { j.set("error", "no"); }).substr(0, 28),
            "expected the error \"no\", got");
  EXPECT_EQ(changed("error", [](Json& j) { j.set("rendered", "no"); }),
            "a case must have either 'rendered' or 'error'");
  EXPECT_EQ(changed("generation_spans",
                    [](Json& j) { j.set("generation_spans", Json::parse("[[1, 2]]")); }),
            "generation_spans: expected [[1, 2]], got []");
  EXPECT_NE(changed("rendered", [](Json& j) { j.set("template", "nothing"); }).find("nothing.json"),
            std::string::npos);
  EXPECT_EQ(changed("rendered", [](Json& j) { j.set("tools", 5); }), "'tools' must be a list");
}

}  // namespace
}  // namespace megatron::tokenizers
