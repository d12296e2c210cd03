// Broken templates: each renders or throws TemplateError, within the limits.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "hang_limit.h"
#include "jinja/template.h"

namespace megatron::jinja {
namespace {

const std::string kChats = std::string(MEGATRON_GOLDEN) + "/chat";

std::vector<std::string> sources() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kChats + "/templates"))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> result;
  for (const auto& file : files) result.push_back(Json::read(file)["chat_template"].as_string());
  return result;
}

// Variables of a chat, with every field that the cases use.
Variables variables() {
  std::ifstream file(kChats + "/cases.jsonl");
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text);
    if (!line.contains("tools") || line["chat"] != Json("turns")) continue;
    return {{"messages", Value::from(line["messages"])},
            {"tools", Value::from(line["tools"])},
            {"documents", Value::from(line["tools"])},
            {"add_generation_prompt", Value::boolean(true)},
            {"bos_token", Value::text("<s>")},
            {"eos_token", Value::text("</s>")}};
  }
  ADD_FAILURE() << "no case with tools";
  return {};
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> sources) : sources_(std::move(sources)) {}

  std::string next() {
    std::string text = sources_[below(sources_.size())];
    for (size_t times = 1 + below(4); times > 0 && !text.empty(); --times) change(text);
    return text;
  }

 private:
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void change(std::string& text) {
    static const std::vector<std::string> kPieces = {
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "-",
        "|",
        ".",
        "(",
        ")",
        "[",
        "]",
        "'",
        "\"",
        "~",
        "**",
        "*999999999",
        "9223372036854775807",
        "-",
        "//0",
        "%0",
        " if ",
        " else ",
        " in ",
        " not ",
        " is ",
        "{% endif %}",
        "{% endfor %}",
        "{% for i in range(99999) %}",
        "{% set x = [x, x] %}",
        "{% set ns.ns = ns %}",
        "{{ ns }}",
        "{{ x }}",
        "|map('map', 'map')",
        "|tojson(indent=999)",
        "|join(x)",
        "messages",
        "messages*1000",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "|wordwrap(1)",
        "|indent(9999)",
        "|batch(99999999, 1)|list",
        "'%99999999d'|format(1)",
        "[::-1]",
        "\xff",
        "\xe2\x80",
        "{% set s = s ~ s ~ 'aaaaaaaaaaaaaaaa' %}",
        "|sort",
        "|reverse",
        "|default(x)"};
    const size_t at = below(text.size());
    switch (below(5)) {
      case 0: text.erase(at, 1 + below(20)); break;
      case 1: text.insert(at, kPieces[below(kPieces.size())]); break;
      case 2: text[at] = static_cast<char>(' ' + below(95)); break;
      case 3: text.insert(at, text.substr(below(text.size()), below(200))); break;
      default: {
        const std::string& other = sources_[below(sources_.size())];
        text = text.substr(0, text.rfind("{%", at)) + other.substr(other.rfind("{%"));
      }
    }
  }

  std::vector<std::string> sources_;
  std::mt19937 random_{20250309};
};

TEST(TemplateFuzz, OnlyErrorsComeOut) {
  using Clock = std::chrono::steady_clock;
  Mutator mutator(sources());
  const Variables given = variables();
  const Limits limits{.steps = 300'000, .output_bytes = 1 << 20};
  int parsed = 0, rendered = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string source = mutator.next();
    const auto begin = Clock::now();
    try {
      const Template broken = Template::parse(source, "fuzz");
      ++parsed;
      broken.render(given, limits);
      ++rendered;
    } catch (const TemplateError& error) {
      EXPECT_FALSE(error.reason().empty());
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(testing::kHangSeconds)) << source;
  }
  EXPECT_GT(parsed, 500);  // enough mutations reach the interpreter
  EXPECT_GT(rendered, 150);
}

}  // namespace
}  // namespace megatron::jinja
