// Tool calls and reasoning in the text that models generate.
#include "server/tool_calls.h"

#include <gtest/gtest.h>

#include "server/chat_text.h"

namespace megatron::server {
namespace {

// "said|name(arguments)|..." of a text given in pieces of `size` bytes.
std::string split(ToolFormat format, const std::string& text, size_t size) {
  ToolCallSplitter splitter(format);
  std::string out;
  for (size_t i = 0; i < text.size(); i += size) out += splitter.push(text.substr(i, size));
  ToolCallSplitter::End end = splitter.finish();
  out += end.said;
  for (const ToolCall& call : end.calls) {
    EXPECT_TRUE(call.id.starts_with("call_")) << call.id;
    out += "|" + call.name + "(" + call.arguments + ")";
  }
  return out;
}

void expect_split(ToolFormat format, const std::string& text, const std::string& expected) {
  for (const size_t size : {size_t{1}, size_t{2}, size_t{7}, text.size() + 1})
    EXPECT_EQ(split(format, text, size), expected) << text << " in pieces of " << size;
}

TEST(ToolCalls, Hermes) {
  const auto expect = [](const std::string& text, const std::string& expected) {
    expect_split(ToolFormat::hermes, text, expected);
  };
  expect("plain text", "plain text");
  expect("a < b <tool", "a < b <tool");
  expect(R"(<tool_call>
{"name": "add", "arguments": {"a": 1, "b": "}"}}
</tool_call>)",
         R"(|add({"a": 1, "b": "}"}))");
  expect(R"(Let me see.
<tool_call>{"name": "f", "arguments": {}}</tool_call>
<tool_call>{"name": "g"}</tool_call>)",
         "Let me see.|f({})|g({})");
  expect(R"(<tool_call>{"name": "f", "arguments": {"x": "é"}})", R"(|f({"x": "é"}))");
  const std::string wide = R"({"x": 18446744073709551615, "y": [-9223372036854775809]})";
  expect(R"(<tool_call>{"name": "f", "arguments": )" + wide + "}", "|f(" + wide + ")");
}

TEST(ToolCalls, WhatIsNoCallIsSaid) {
  for (const std::string text :
       {R"(<tool_call>{"name": "f", "arguments": {)", "<tool_call>no json</tool_call>",
        R"(<tool_call>{"arguments": {}}</tool_call>)", R"(<tool_call>{"name": 3}</tool_call>)",
        R"(say <tool_call>{"name": "f"}</tool_call> more)", "<tool_call>", "<tool_call>[1}",
        R"(<tool_call>{"name": "f"]</tool_call>)"})
    expect_split(ToolFormat::hermes, text, text);
  expect_split(ToolFormat::llama, R"({"answer": 3})", R"({"answer": 3})");
  expect_split(ToolFormat::none, R"(<tool_call>{"name": "f"}</tool_call>)",
               R"(<tool_call>{"name": "f"}</tool_call>)");
}

TEST(ToolCalls, Llama) {
  const auto expect = [](const std::string& text, const std::string& expected) {
    expect_split(ToolFormat::llama, text, expected);
  };
  expect(R"({"name": "f", "parameters": {"city": "Bern"}})", R"(|f({"city": "Bern"}))");
  expect(R"(  <|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "arguments": {}})",
         "|f({})|g({})");
  expect("A set {1, 2}.", "A set {1, 2}.");
}

TEST(ToolCalls, Mistral) {
  const auto expect = [](const std::string& text, const std::string& expected) {
    expect_split(ToolFormat::mistral, text, expected);
  };
  expect(R"([TOOL_CALLS][{"name": "f", "arguments": {"a": [1]}}, {"name": "g", "arguments": {}}])",
         R"(|f({"a": [1]})|g({}))");
  expect(R"([TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g[ARGS]{})", R"(|f({"a": 1})|g({}))");
  expect("[TOOL_CALLS]f", "[TOOL_CALLS]f");
}

TEST(ToolCalls, ArgumentsThatAreTextStayIt) {
  const auto calls =
      parse_tool_calls(ToolFormat::hermes, R"(<tool_call>{"name": "f", "arguments": "{}"})");
  ASSERT_TRUE(calls);
  EXPECT_EQ((*calls)[0].arguments, "{}");
  EXPECT_EQ((*calls)[0].json()["function"]["name"], Json("f"));
}

TEST(ToolCalls, TheTemplateShowsTheFormat) {
  EXPECT_EQ(tool_format_of("x '[TOOL_CALLS]' y"), ToolFormat::mistral);
  EXPECT_EQ(tool_format_of("within <tool_call></tool_call> tags"), ToolFormat::hermes);
  EXPECT_EQ(tool_format_of("{{ '<|python_tag|>' }}"), ToolFormat::llama);
  EXPECT_EQ(tool_format_of(R"("parameters": x, role ipython)"), ToolFormat::llama);
  EXPECT_EQ(tool_format_of("{{ messages }}"), ToolFormat::none);
}

// "(reasoning)content|calls" of a text given in pieces of `size` bytes.
std::string chat(const ChatFormat& format, const std::string& text, size_t size) {
  ChatText divided(format);
  std::string thought, said;
  for (size_t i = 0; i < text.size(); i += size) {
    const ChatDelta delta = divided.push(text.substr(i, size));
    thought += delta.reasoning;
    said += delta.content;
  }
  const ChatText::End end = divided.finish();
  thought += end.rest.reasoning;
  said += end.rest.content;
  return "(" + thought + ")" + said + "|" + std::to_string(end.calls.size());
}

TEST(ChatText, Reasoning) {
  const ChatFormat starts{.reasons = true}, within{.reasons = true, .in_thought = true};
  const ChatFormat with_tools{.tools = ToolFormat::hermes, .reasons = true};
  for (const auto& [format, text, expected] : {
           std::tuple<ChatFormat, std::string, std::string>{
               starts, "<think>\nso\n\nthen\n</think>\n\nYes. <think>",
               "(so\n\nthen)Yes. <think>|0"},
           {starts, "Yes.", "()Yes.|0"},
           {starts, " <thing>", "() <thing>|0"},
           {starts, "<thi", "()<thi|0"},
           {starts, "<think>not done </thin", "(not done </thin)|0"},
           {starts, "<think></think>x", "()x|0"},
           {within, "so</think>Yes", "(so)Yes|0"},
           {within, "so", "(so)|0"},
           {with_tools, "<think>a</think>\n<tool_call>{\"name\": \"f\"}</tool_call>", "(a)|1"},
           {ChatFormat{}, "<think>a</think>b", "()<think>a</think>b|0"},
       }) {
    for (const size_t size : {size_t{1}, size_t{3}, text.size()})
      EXPECT_EQ(chat(format, text, size), expected) << text << " in pieces of " << size;
  }
}

}  // namespace
}  // namespace megatron::server
