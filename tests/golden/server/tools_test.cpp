// Calls of tools and reasoning in chats, of a model that says them.
#include "golden/server/scripted_model.h"

namespace megatron::testing {
namespace {

class Scripted : public ::testing::Test {
 protected:
  static server::ServerOptions options() { return served_options(kScriptedPositions); }

  // The answer where the model says `text`, whole; a stream of the same must give the same.
  static Json message(const std::string& chat_template, const std::string& fields,
                      const std::string& text, std::string& reason) {
    ServedModel served(options(), chat_template, scripted_shape());
    const std::string body =
        R"("temperature": 0, "messages": [{"role": "user", "content": "x"}], )" + fields;
    const std::string tools = fields.find("\"tools\"") == fields.npos ? "[]" : kTools;
    const auto prompt = static_cast<size_t>(
        served
            .get("/tokenize", R"({"messages": [{"role": "user", "content": "x"}], "tools": )" +
                                  tools + "}")["count"]
            .as_integer());
    write_script(served.model.model, script(prompt, text));
    const Json whole =
        served.get("/v1/chat/completions", "{" + body + "}")["choices"].as_array()[0];
    reason = whole["finish_reason"].as_string();

    std::string content, thought, streamed_reason;
    Json calls;
    for (const Json& event :
         served.stream("/v1/chat/completions", R"({"stream": true, )" + body + "}")) {
      const Json& choice = event["choices"].as_array()[0];
      const Json& delta = choice["delta"];
      if (delta.contains("content")) content += delta["content"].as_string();
      if (delta.contains("reasoning_content")) thought += delta["reasoning_content"].as_string();
      if (delta.contains("tool_calls")) calls = delta["tool_calls"];
      if (!choice["finish_reason"].is_null()) streamed_reason = choice["finish_reason"].as_string();
    }
    const Json& said = whole["message"];
    EXPECT_EQ(streamed_reason, reason);
    EXPECT_EQ(content, said["content"].is_null() ? "" : said["content"].as_string());
    EXPECT_EQ(thought, said.contains("reasoning_content") ? said["reasoning_content"].as_string()
                                                          : std::string());
    EXPECT_EQ(calls.is_null(), !said.contains("tool_calls"));
    if (!calls.is_null()) {
      for (size_t i = 0; i < calls.as_array().size(); ++i) {
        EXPECT_EQ(calls.as_array()[i]["index"].as_integer(), static_cast<int64_t>(i));
        EXPECT_EQ(calls.as_array()[i]["function"], said["tool_calls"].as_array()[i]["function"]);
      }
    }
    return said;
  }

  static constexpr const char* kTools =
      R"([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}])";
  static std::string tools() { return std::string(R"("tools": )") + kTools; }
};

TEST_F(Scripted, ACallOfATool) {
  std::string reason;
  const Json said = message(kChatTemplate, tools(),
                            "Sum:\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n"
                            "</tool_call>",
                            reason);
  EXPECT_EQ(reason, "tool_calls");
  EXPECT_EQ(said["content"], Json("Sum:"));
  const Json& call = said["tool_calls"].as_array()[0];
  EXPECT_TRUE(call["id"].as_string().starts_with("call_"));
  EXPECT_EQ(call["type"], Json("function"));
  EXPECT_EQ(call["function"]["name"], Json("add"));
  EXPECT_EQ(call["function"]["arguments"], Json("{\"a\": 1}"));
}

TEST_F(Scripted, SeveralCallsOrOne) {
  const std::string two =
      "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>"
      "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
  std::string reason;
  Json said = message(kChatTemplate, tools(), two, reason);
  EXPECT_TRUE(said["content"].is_null());
  EXPECT_EQ(said["tool_calls"].as_array().size(), 2u);
  said = message(kChatTemplate, tools() + R"(, "parallel_tool_calls": false)", two, reason);
  EXPECT_EQ(said["tool_calls"].as_array().size(), 1u);
  EXPECT_EQ(reason, "tool_calls");
}

TEST_F(Scripted, WithoutToolsACallIsText) {
  const std::string text = "<tool_call>{\"name\": \"add\"}</tool_call>";
  std::string reason;
  const Json said = message(kChatTemplate, R"("n": 1)", text, reason);
  EXPECT_EQ(said["content"].as_string(), text);
  EXPECT_EQ(reason, "stop");
}

TEST_F(Scripted, Reasoning) {
  std::string reason;
  const Json said = message(kChatTemplate, R"("n": 1)", "<think>\nHm é\n</think>\n\nYes.", reason);
  EXPECT_EQ(said["reasoning_content"], Json("Hm é"));
  EXPECT_EQ(said["content"], Json("Yes."));
  EXPECT_EQ(reason, "stop");
}

// Right-to-left text, and characters of several tokens, come out whole wherever a stream cuts.
TEST_F(Scripted, AnyScript) {
  const std::string text = "שלום עולם مرحبا 世界 👩‍👩‍👧";
  std::string reason;
  EXPECT_EQ(message(kChatTemplate, R"("n": 1)", text, reason)["content"], Json(text));
}

TEST_F(Scripted, StopStringsAcrossTokens) {
  std::string reason;
  const Json said =
      message(kChatTemplate, R"("stop": ["END", "世x"])", "ab E 世 ENx END c", reason);
  EXPECT_EQ(said["content"], Json("ab E 世 ENx "));
  EXPECT_EQ(reason, "stop");
}

}  // namespace
}  // namespace megatron::testing
