// Conversations in the formats that are in common use.
#include "corpus/chat/chat_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace megatron::corpus {
namespace {

ChatExample read(const std::string& json) { return example_of(Json::parse(json), "chats:3"); }

std::string error_of(const std::string& json) {
  try {
    read(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string messages_of(const std::string& json) { return Json(read(json).messages).dump(); }

TEST(ChatReader, Messages) {
  const ChatExample example = read(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null,
          "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
          {"role": "tool", "content": "2"}, {"role": "assistant", "content": "b"}],
          "tools": "[{\"type\": \"function\"}]", "chat_template_kwargs": {"enable_thinking": false}})");
  EXPECT_EQ(example.messages.size(), 4u);
  EXPECT_EQ(example.messages[1]["tool_calls"].as_array()[0]["function"]["arguments"].dump(),
            R"({"x": 1})");
  EXPECT_EQ(example.tools->size(), 1u);
  EXPECT_EQ(Json(example.variables).dump(), R"({"enable_thinking": false})");
  EXPECT_FALSE(example.prompt_messages);
  EXPECT_EQ(example.place, "chats:3");
}

TEST(ChatReader, ShareGpt) {
  EXPECT_EQ(messages_of(R"({"conversations": [{"from": "system", "value": "s"},
      {"from": "human", "value": "a"},
      {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},
      {"from": "observation", "value": "2"}, {"from": "gpt", "value": "b"}]})"),
            R"([{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, )"
            R"({"role": "assistant", "content": "", "tool_calls": [{"type": "function", )"
            R"("function": {"name": "f", "arguments": {"x": 1}}}]}, )"
            R"({"role": "tool", "content": "2"}, {"role": "assistant", "content": "b"}])");
}

TEST(ChatReader, Alpaca) {
  EXPECT_EQ(messages_of(R"({"instruction": "Add", "input": "1 2", "output": "3", "system": "s"})"),
            R"([{"role": "system", "content": "s"}, {"role": "user", "content": "Add\n1 2"}, )"
            R"({"role": "assistant", "content": "3"}])");
  EXPECT_EQ(messages_of(R"({"instruction": "Hi", "input": "", "output": "3"})"),
            R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "3"}])");
}

TEST(ChatReader, PromptsAndCompletions) {
  const ChatExample texts = read(R"({"prompt": "a", "completion": " b"})");
  EXPECT_EQ(texts.texts, (std::pair<std::string, std::string>("a", " b")));
  const ChatExample messages = read(R"({"prompt": [{"role": "user", "content": "a"}],
               "completion": [{"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(messages.messages.size(), 2u);
  EXPECT_EQ(messages.prompt_messages, 1u);
}

TEST(ChatReader, ASourceIsNamedOrTheFile) {
  const auto source = [](const char* text) {
    return source_of(Json::parse(text, "record"), "a:b/chats.jsonl:12");
  };
  EXPECT_EQ(source(R"({"source": "math", "channel": "final"})"), "math");
  EXPECT_EQ(source(R"({"source": 3, "channel": "final"})"), "final");
  for (const auto* none : {"{}", R"({"source": null})", R"({"source": ""})"})
    EXPECT_EQ(source(none), "a:b/chats.jsonl") << none;
}

TEST(ChatReader, BadRecordsAreRefused) {
  const auto refused = [](const std::string& json, const std::vector<std::string>& parts) {
    const std::string error = error_of(json);
    EXPECT_NE(error.find("chats:3"), std::string::npos) << error;
    for (const std::string& part : parts)
      EXPECT_NE(error.find(part), std::string::npos) << part << " in " << error;
  };
  refused("[1]", {"JSON object"});
  refused(R"({"text": "a"})", {"'messages'", "'conversations'", "'instruction'"});
  refused(R"({"messages": "a"})", {"'messages'", "list"});
  refused(R"({"messages": [{"content": "a"}]})", {"'role'"});
  refused(R"({"messages": [{"role": "robot", "content": "a"}]})", {"'robot'", "assistant"});
  refused(R"({"messages": [{"role": "assistant"}]})", {"'content'", "'tool_calls'"});
  refused(R"({"messages": [{"role": "user", "content": "a"}]})",
          {"no message is of the assistant"});
  refused(R"({"conversations": [{"from": "alien", "value": "a"}]})", {"'alien'", "human"});
  refused(R"({"prompt": "a", "completion": ""})", {"empty"});
  refused(R"({"prompt": "a", "completion": [1]})", {"both"});
  refused(R"({"messages": [{"role": "assistant", "content": "a"}], "tools": 3})", {"'tools'", "3"});
}

TEST(ChatReader, LinesAndArrays) {
  std::string pattern = (std::filesystem::temp_directory_path() / "chats-XXXXXX").string();
  const std::filesystem::path folder = mkdtemp(pattern.data());
  std::ofstream(folder / "a.jsonl") << "{\"n\": 1}\n\n{\"n\": 2}\n";
  std::ofstream(folder / "b.json") << "[{\"n\": 3},\n {\"n\": 4}]\n";
  std::vector<std::string> places;
  int64_t sum = 0;
  read_records({folder.string()}, [&](const Json& record, const std::string& place) {
    sum = sum * 10 + record["n"].as_integer();
    places.push_back(place.substr(folder.string().size() + 1));
    return true;
  });
  EXPECT_EQ(sum, 1234);
  EXPECT_EQ(places, (std::vector<std::string>{"a.jsonl:1", "a.jsonl:3", "b.json, element 0",
                                              "b.json, element 1"}));
  std::ofstream(folder / "c.jsonl") << "{\"n\": 1}\n{\"n\": \n";
  EXPECT_THROW(
      read_records({(folder / "c.jsonl").string()}, [](const Json&, const auto&) { return true; }),
      Error);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace megatron::corpus
