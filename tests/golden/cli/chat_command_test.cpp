// `megatron tokenizer chat`: what it prints and refuses.
#include <gtest/gtest.h>

#include "golden/cli/process.h"

namespace megatron::testing {
namespace {

const std::string kTemplates = std::string(MEGATRON_GOLDEN) + "/chat/templates/";

class ChatCommand : public ::testing::Test {
 protected:
  Outcome chat(const std::string& model, const std::string& messages, const Words& more = {}) {
    write_file(place_ / "m.json", messages);
    Words words = {"tokenizer", "chat", "--tokenizer-model", model, "--messages", "m.json"};
    words.insert(words.end(), more.begin(), more.end());
    return place_.run(words);
  }

  void refused(const Outcome& outcome, const std::string& part) {
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }

  Workplace place_;
};

constexpr const char* kHello = R"([{"role": "user", "content": "Hé"}])";

TEST_F(ChatCommand, PrintsTheTextAsItIs) {
  EXPECT_EQ(chat(kTemplates + "chatml.json", kHello, {"--add-generation-prompt"}).out,
            "<|im_start|>user\nHé<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat(kTemplates + "chatml.json", kHello, {"--continue-final-message"}).out,
            "<|im_start|>user\nHé");
}

TEST_F(ChatCommand, TakesClockVariablesAndTemplates) {
  const Outcome harmony =
      chat(kTemplates + "harmony.json", kHello,
           {"--now", "1999-12-31 23:59:59", "--variables", R"({"reasoning_effort": "high"})"});
  EXPECT_NE(harmony.out.find("Current date: 1999-12-31\n\nReasoning: high\n"), std::string::npos);
  write_file(place_ / "t.jinja", "{{ messages | length }} {{ eos_token }} {{ tools | tojson }}");
  write_file(place_ / "tools.json", R"([{"name": "f"}])");
  EXPECT_EQ(chat(kTemplates + "chatml.json", kHello,
                 {"--chat-template", "t.jinja", "--tools", "tools.json"})
                .out,
            R"(1 <|im_end|> [{"name": "f"}])");
}

TEST_F(ChatCommand, FindsTheTemplatesOfADirectory) {
  write_file(place_ / "model/chat_template.jinja", "one {{ bos_token }}");
  write_file(place_ / "model/additional_chat_templates/tool_use.jinja", "tools");
  write_file(place_ / "model/additional_chat_templates/rag.jinja", "rag");
  write_file(place_ / "model/tokenizer_config.json",
             R"({"bos_token": {"content": "<b>"}, "chat_template": "hidden"})");
  write_file(place_ / "tools.json", "[{}]");
  EXPECT_EQ(chat("model", kHello).out, "one <b>");
  EXPECT_EQ(chat("model", kHello, {"--tools", "tools.json"}).out, "tools");
  EXPECT_EQ(chat("model", kHello, {"--template", "rag"}).out, "rag");
  refused(chat("model", kHello, {"--template", "no"}),
          "choose one with --template: default, "
          "rag, tool_use");
}

TEST_F(ChatCommand, ShowsSpans) {
  EXPECT_EQ(
      chat(kTemplates + "chatml_mask.json",
           R"([{"role": "user", "content": "é"}, {"role": "assistant", "content": "b"}])",
           {"--show-spans"})
          .out,
      "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\né<|im_end|>\n"
      "<|im_start|>assistant\nb<|im_end|>\n\n[[109, 120]]\n");
}

TEST_F(ChatCommand, RefusesWithReasons) {
  const std::string chatml = kTemplates + "chatml.json";
  refused(chat(chatml, "[]"), "at least one message");
  refused(chat(chatml, "[5]"), "messages[0] is not a JSON object");
  refused(chat(chatml, "{"), "m.json");
  refused(chat(chatml, "5"), "must contain a list of messages");
  refused(chat(chatml, kHello, {"--tokenize", "--show-spans"}), "drop one");
  refused(chat(chatml, kHello, {"--now", "tomorrow"}), "'tomorrow' is not a date and time");
  refused(chat(chatml, kHello, {"--now", "2025-02-30"}), "'2025-02-30' is not a date and time");
  refused(chat(chatml, kHello, {"--add-generation-prompt", "--continue-final-message"}),
          "are mutually exclusive");
  refused(chat(kTemplates + "gemma.json", R"([{"role": "assistant", "content": "a"}])"),
          "gemma.json, line ");
  write_file(place_ / "config.json", "{}");
  refused(chat("config.json", kHello), "--chat-template FILE");
  write_file(place_ / "t.jinja", "\n{% if %}");
  refused(chat(chatml, kHello, {"--chat-template", "t.jinja"}), "template t.jinja, line 2: ");
}

}  // namespace
}  // namespace megatron::testing
