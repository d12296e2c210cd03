// Constrained output, logit biases, and prompts that are in the cache.
#include "golden/server/support.h"

namespace megatron::testing {
namespace {

class Forms : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = new ServedModel(served_options(512)); }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }

  static std::string text(const std::string& fields) {
    return served_
        ->get("/v1/completions", R"({"prompt": "x", "seed": 3, )" + fields + "}")["choices"]
        .as_array()[0]["text"]
        .as_string();
  }
  static Json chat(const std::string& fields) {
    return served_
        ->get("/v1/chat/completions",
              R"({"messages": [{"role": "user", "content": "x"}], "seed": 3, )" + fields +
                  "}")["choices"]
        .as_array()[0];
  }
  static std::string param(const std::string& fields) {
    const httplib::Result result =
        served_->post("/v1/chat/completions",
                      R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}");
    if (!result || result->status != 400) return "not refused";
    return Json::parse(result->body)["error"]["param"].as_string();
  }

  static constexpr const char* kSchema =
      R"({"type": "object", "required": ["ok", "n"], "additionalProperties": false,
          "properties": {"ok": {"type": "boolean"},
                         "n": {"type": "integer", "minimum": 0, "maximum": 99}}})";
  static ServedModel* served_;
};
ServedModel* Forms::served_ = nullptr;

TEST_F(Forms, ASchema) {
  const std::string format =
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": )" +
      std::string(kSchema) + "}}";
  const std::string completed = text(R"("max_tokens": 100, )" + format);
  EXPECT_EQ(text(R"("max_tokens": 100, "guided_json": )" + std::string(kSchema)), completed);
  EXPECT_TRUE(Json::parse(completed)["ok"].is_bool()) << completed;
  const Json choice = chat(format + R"(, "n": 3)");
  EXPECT_EQ(choice["finish_reason"], Json("stop"));
  const Json value = Json::parse(choice["message"]["content"].as_string());
  EXPECT_TRUE(value["ok"].is_bool());
  EXPECT_LE(value["n"].as_integer(), 99);
  EXPECT_EQ(value.as_object().size(), 2u);
  std::string streamed;
  for (const Json& event : served_->stream(
           "/v1/chat/completions",
           R"({"stream": true, "messages": [{"role": "user", "content": "x"}], "seed": 3, )" +
               format + "}")) {
    const Json* content = event["choices"].as_array()[0]["delta"].find("content");
    if (content != nullptr) streamed += content->as_string();
  }
  EXPECT_EQ(streamed, choice["message"]["content"].as_string());
}

TEST_F(Forms, OtherForms) {
  const Json object = chat(R"("response_format": {"type": "json_object"}, "max_tokens": 400)");
  if (object["finish_reason"] == Json("stop")) {
    EXPECT_TRUE(Json::parse(object["message"]["content"].as_string()).is_object());
  }
  EXPECT_EQ(object["message"]["content"].as_string().substr(0, 1), "{");
  const std::string digits = text(R"("max_tokens": 60, "guided_regex": "[0-9]{3}-[ab]+c")");
  EXPECT_EQ(digits.substr(3, 1), "-") << digits;
  EXPECT_EQ(digits.find_first_not_of("0123456789-abc"), digits.npos) << digits;
  const std::string chosen = text(R"("guided_choice": ["a.b", "c|d", "[e]"])");
  EXPECT_TRUE(chosen == "a.b" || chosen == "c|d" || chosen == "[e]") << chosen;
  EXPECT_TRUE(Json::parse(text(R"("max_tokens": 60, "guided_json": )" + std::string(kSchema)))["ok"]
                  .is_bool());
}

TEST_F(Forms, ACallThatMustBeMade) {
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters":
           {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9,
                                                   "default": 3}}}}},
          {"type": "function", "function": {"name": "g"}}], )";
  for (const std::string& choice :
       {std::string(R"("required")"),
        std::string(R"({"type": "function", "function": {"name": "f"}})"),
        std::string(R"({"type": "function", "function": {"name": "g"}})")}) {
    const Json answer = chat(tools + R"("tool_choice": )" + choice);
    EXPECT_EQ(answer["finish_reason"], Json("tool_calls"));
    EXPECT_TRUE(answer["message"]["content"].is_null());
    const Json& function = answer["message"]["tool_calls"].as_array()[0]["function"];
    const Json arguments = Json::parse(function["arguments"].as_string());
    if (function["name"] == Json("f")) {
      EXPECT_GE(arguments["n"].as_integer(), 1);
    } else {
      EXPECT_EQ(arguments, Json(Json::Object{}));
    }
    if (choice.find("\"g\"") != choice.npos) {
      EXPECT_EQ(function["name"], Json("g"));
    }
  }
}

TEST_F(Forms, StructuredOutputs) {
  const auto of = [](const std::string& form) {
    return text(R"("max_tokens": 60, "structured_outputs": {)" + form + "}");
  };
  EXPECT_EQ(of(R"("regex": "a{3}")"), "aaa");
  EXPECT_EQ(of(R"("choice": ["only"], "json": null)"), "only");
  EXPECT_TRUE(Json::parse(of(R"("json": )" + std::string(kSchema)))["ok"].is_bool());
  EXPECT_EQ(of(R"("json_object": true)").substr(0, 1), "{");
  EXPECT_EQ(param(R"("structured_outputs": {"grammar": "root ::= x"})"),
            "structured_outputs.grammar");
  EXPECT_EQ(param(R"("structured_outputs": {"json": {}, "regex": "a"})"),
            "structured_outputs.json");
  EXPECT_EQ(param(R"("structured_outputs": {"json": {}, "json_object": true})"),
            "structured_outputs.json_object");
  EXPECT_EQ(param(R"("structured_outputs": {"json": {}}, "guided_regex": "a")"),
            "structured_outputs");
}

// A header names the ignored keywords; a strict schema with such keywords is refused.
TEST_F(Forms, KeywordsThatAreNotHeldTo) {
  const std::string schema = R"({"type": "object", "required": ["n"], "additionalProperties": false,
      "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9, "not": {"const": 3}}}})";
  const std::string format =
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": )" +
      schema;
  const std::string tool = R"("tools": [{"type": "function", "function": {"name": "f",
      "parameters": )" + schema;
  const auto header = [](const std::string& path, const std::string& fields) {
    const httplib::Result result = served_->post(path, "{" + fields + "}");
    if (!result || result->status != 200) return std::string("no answer");
    return result->get_header_value("X-Unenforced-Keywords");
  };
  const std::string messages = R"("messages": [{"role": "user", "content": "x"}], )";
  const std::string chats = "/v1/chat/completions", at = "#/properties/n/not";
  EXPECT_EQ(header(chats, messages + format + "}}"), at);
  EXPECT_EQ(header(chats, messages + R"("stream": true, )" + format + "}}"), at);
  EXPECT_EQ(header(chats, messages + tool + R"(}}], "tool_choice": "required")"), "f" + at);
  EXPECT_EQ(header("/v1/completions", R"("prompt": "x", "guided_json": )" + schema), at);
  EXPECT_EQ(header("/v1/completions", R"("prompt": "x", "guided_json": )" + std::string(kSchema)),
            "");
  EXPECT_EQ(param(format + R"(, "strict": true}})"), "response_format.json_schema.schema");
  EXPECT_EQ(param(tool + R"(, "strict": true}}], "tool_choice": "required")"), "tools");
}

TEST_F(Forms, WhatCannotBeHeldTo) {
  EXPECT_EQ(param(R"("response_format": {"type": "json_schema", "json_schema": {"name": "s"}})"),
            "response_format.json_schema");
  EXPECT_EQ(param(R"("response_format": {"type": "json_schema",
                                         "json_schema": {"schema": {"type": 7}}})"),
            "response_format.json_schema.schema");
  EXPECT_EQ(param(R"("guided_regex": "[")"), "guided_regex");
  EXPECT_EQ(param(R"("guided_regex": "a", "guided_choice": ["b"])"), "guided_json");
  EXPECT_EQ(param(R"("guided_choice": [])"), "guided_choice");
  EXPECT_EQ(param(R"("guided_choice": [""])"), "guided_choice");
  EXPECT_EQ(param(R"("tool_choice": "required")"), "tool_choice");
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}], )";
  EXPECT_EQ(param(tools + R"("tool_choice": {"type": "function", "function": {"name": "x"}})"),
            "tool_choice");
  EXPECT_EQ(param(tools + R"("tool_choice": {"type": "function"})"), "tool_choice");
  EXPECT_EQ(param(R"("priority": 101)"), "priority");
}

// A pattern with too many parses is an error of the request, even in the middle of a text.
TEST_F(Forms, PatternsThatAreAmbiguous) {
  std::string letters;
  for (char c = 'a'; c <= 'z'; ++c) letters += {c, '?', static_cast<char>(c - 'a' + 'A'), '?'};
  const httplib::Result result = served_->post(
      "/v1/completions", R"({"prompt": "x", "guided_regex": "x(?:)" + letters + R"(){1000}1"})");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 400);
  const Json error = Json::parse(result->body)["error"];
  EXPECT_EQ(error["code"], Json("grammar_limit"));
  EXPECT_NE(error["message"].as_string().find("too ambiguous"), std::string::npos);
}

TEST_F(Forms, BiasesAndPenalties) {
  EXPECT_EQ(text(R"("temperature": 0, "max_tokens": 4, "logit_bias": {"65": 100})"), "AAAA");
  EXPECT_EQ(text(R"("temperature": 0, "max_tokens": 4, "logit_bias": {"0": 100})"), "");
  EXPECT_EQ(text(R"("temperature": 0, "max_tokens": 4, "logit_bias": {"0": 100, "66": 50},
                    "min_tokens": 3)"),
            "BBB");
  EXPECT_NE(text(R"("max_tokens": 20)"), text(R"("max_tokens": 20, "presence_penalty": 2)"));
  EXPECT_NE(text(R"("max_tokens": 40)"), text(R"("max_tokens": 40, "frequency_penalty": 2)"));
}

TEST_F(Forms, PromptsThatTheCacheHas) {
  const std::string body = R"({"max_tokens": 1, "prompt": ")" + std::string(200, 'q') + "\"}";
  const auto cached = [&] {
    return served_->get("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_integer();
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_EQ(cached(), 192) << "whole blocks of 64 tokens";
}

}  // namespace
}  // namespace megatron::testing
