// PyPI's unmodified openai as a client.
#include <cstdio>

#include "golden/selftest/support.h"
#include "golden/server/scripted_model.h"

namespace megatron::testing {
namespace {

std::string output_of(const std::string& command, int& code) {
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  std::string text;
  for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  code = pclose(pipe);
  return text;
}

TEST(OpenAiClient, WorksUnchanged) {
  const TemporaryDirectory place;
  const std::string python = place / "venv/bin/python";
  int code = 0;
  const std::string made = output_of(
      "python3 -m venv " + place / "venv" + " && " + python + " -m pip install -q openai", code);
  if (code != 0)
    GTEST_SKIP() << "python3 -m venv and pip install openai did not succeed here (they need "
                    "python3-venv and PyPI): "
                 << made;
  server::ServerOptions options = served_options(), of_script = served_options(kScriptedPositions);
  options.service.keys = of_script.service.keys = server::ApiKeys({"right"});
  const ServedModel served(options);
  ServedModel scripted(of_script, kChatTemplate, scripted_shape());
  const std::string prompt = "[add ]<tool_call>u:x\na:";
  write_script(
      scripted.model.model,
      script(prompt.size(), R"(<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>)"));
  const std::string said =
      output_of(fmt::format("{} {}/slow/server/openai_client.py {} {}", python,
                            MEGATRON_TEST_SOURCES, served.server->port(), scripted.server->port()),
                code);
  EXPECT_EQ(code, 0) << said;
  EXPECT_EQ(said, "all well\n");
}

}  // namespace
}  // namespace megatron::testing
