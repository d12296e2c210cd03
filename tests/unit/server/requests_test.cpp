// Request bodies are parsed strictly.
#include <gtest/gtest.h>

#include "server/chat_request.h"
#include "server/completion_request.h"
#include "tokenizers/plain_codecs.h"

namespace megatron::server {
namespace {

TextModel model(const std::string& chat_template = "") {
  TextModel::Parts parts{.name = "m",
                         .tokenizer = tokenizers::Tokenizer(tokenizers::make_byte_codec(256)),
                         .end_tokens = {0, 7},
                         .context = 50};
  if (!chat_template.empty()) parts.chat.set_template(chat_template, "/secret/place.jinja");
  return TextModel(std::move(parts));
}

template <class F>
std::string param_of(F&& f) {
  try {
    f();
  } catch (const ApiError& e) {
    return e.json()["error"]["param"].is_null() ? "-" : e.json()["error"]["param"].as_string();
  }
  return "none";
}

TEST(Parameters, NullCountsAsAbsent) {
  const Json json = Json::parse(R"({"a": null, "b": 3, "c": 2.0, "d": 0.5, "e": "x", "f": {}})");
  const Parameters p(json);
  EXPECT_FALSE(p.boolean("a"));
  EXPECT_FALSE(p.integer("a", 0, 1));
  EXPECT_EQ(p.integer("b", 3, 3), 3);
  EXPECT_EQ(p.integer("c", 0, 9), 2);
  EXPECT_EQ(p.number("b", 0, 9), 3.0);
  EXPECT_EQ(p.number("d", 0, 1), 0.5);
  EXPECT_EQ(p.text("e"), "x");
  EXPECT_TRUE(p.object("f"));
  EXPECT_EQ(param_of([&] { p.integer("d", 0, 9); }), "d");
  EXPECT_EQ(param_of([&] { p.integer("b", 4, 9); }), "b");
  EXPECT_EQ(param_of([&] { p.text("b"); }), "b");
  EXPECT_EQ(param_of([&] { p.array("e"); }), "e");
  EXPECT_EQ(param_of([&] { Parameters(json["f"], "f.").fail("g", "is bad"); }), "f.g");
}

TEST(Parameters, WhatAsksForNothingIsNotRefused) {
  const Json json = Json::parse(
      R"({"a": false, "b": 0, "c": "", "d": [], "e": {}, "f": null, "g": true, "h": [0]})");
  const Parameters p(json);
  p.refuse({"a", "b", "c", "d", "e", "f", "no such field"});
  EXPECT_EQ(param_of([&] { p.refuse({"a", "g"}); }), "g");
  EXPECT_EQ(param_of([&] { p.refuse({"h"}); }), "h");
  p.refuse({{"g", true}, {"c", ""}, {"no such field", 1}});
  EXPECT_EQ(param_of([&] { p.refuse({{"b", 1}}); }), "b");
}

TEST(Parameters, ValuesAreShownShort) {
  EXPECT_EQ(shown(Json(3)), "3");
  EXPECT_EQ(shown(Json(Json::Array{})), "a list");
  const std::string text = shown(Json(std::string(38, 'x') + "éé" + std::string(1000, 'y')));
  EXPECT_EQ(text, "\"" + std::string(38, 'x') + "...");
}

TEST(CompletionRequest, AllFields) {
  const CompletionRequest r = read_completion(
      Json::parse(R"({"model": "m", "prompt": "ab", "temperature": 0, "top_p": 0.5, "top_k": -1,
                      "min_p": 0.1, "repetition_penalty": 1.2, "seed": -1, "max_tokens": 9, "n": 2,
                      "best_of": 3, "stop": ["x", "yz"], "stop_token_ids": [5], "logprobs": 0,
                      "echo": true, "user": "u", "ignore_eos": true})"),
      model());
  EXPECT_EQ(r.prompts[0].tokens, (std::vector<int32_t>{'a', 'b'}));
  const inference::SamplingOptions s = r.generation.sampling(9);
  EXPECT_EQ(s.temperature, 0);
  EXPECT_EQ(s.top_p, 0.5);
  EXPECT_EQ(s.top_k, 0);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.repetition_penalty, 1.2);
  EXPECT_EQ(s.seed, UINT64_MAX);
  EXPECT_EQ(r.generation.max_tokens, 9);
  EXPECT_EQ(r.best_of, 3);
  EXPECT_EQ(r.generation.stops, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(r.generation.end_tokens(model()), (std::vector<int32_t>{5}));
  EXPECT_EQ(r.logprobs, 0);
  EXPECT_TRUE(r.echo);
}

TEST(CompletionRequest, Defaults) {
  const CompletionRequest r = read_completion(Json::parse(R"({"prompt": ["a", [66]]})"), model());
  EXPECT_EQ(r.prompts[1].text, "B");
  EXPECT_EQ(r.generation.sampling(9).seed, 9u);
  EXPECT_EQ(r.generation.sampling(9).temperature, 1);
  EXPECT_EQ(r.generation.end_tokens(model()), (std::vector<int32_t>{0, 7}));
  EXPECT_FALSE(r.logprobs);
  EXPECT_FALSE(r.generation.stream);
}

TEST(CompletionRequest, LogprobsOfPromptsHaveALimit) {
  GenerationParameters g;
  require_prompt_logprobs(g, INT64_MAX);
  g.prompt_logprobs = 20;
  require_prompt_logprobs(g, kMaxPromptLogprobs / 21);
  EXPECT_EQ(param_of([&] { require_prompt_logprobs(g, kMaxPromptLogprobs / 20); }),
            "prompt_logprobs");
}

TEST(CompletionRequest, ExpertsOfTokensHaveALimit) {
  models::ModelFacts facts;
  require_routed_experts(facts, 0);
  facts.experts = models::ExpertFacts{.count = 64, .chosen = 8, .layers = {false, true, true}};
  require_routed_experts(facts, kMaxRoutedExperts / 16);
  EXPECT_EQ(param_of([&] { require_routed_experts(facts, kMaxRoutedExperts / 16 + 1); }),
            "return_routed_experts");
}

TEST(CompletionRequest, RoomForText) {
  EXPECT_EQ(room_for_text(model(), 10, 40, {}), 40);
  EXPECT_EQ(room_for_text(model(), 10, {}, {}), 40);
  EXPECT_EQ(room_for_text(model(), 10, {}, 16), 16);
  EXPECT_EQ(room_for_text(model(), 45, {}, 16), 5);
  EXPECT_EQ(room_for_text(model(), 50, 0, {}), 0);
  for (const auto& [prompt, asked] : {std::pair<int64_t, std::optional<int64_t>>{51, 0},
                                      {10, 41},
                                      {50, {}},
                                      {60, {}},
                                      {10, INT64_MAX}})
    EXPECT_EQ(param_of([&] { room_for_text(model(), prompt, asked, 16); }), "prompt");
}

// Names of the machine's files are not revealed.
TEST(ChatRequest, TheTemplatesRefusalIsAnswered) {
  const TextModel strict = model("{{ raise_exception('only users') }}");
  const ChatRequest r =
      read_chat(Json::parse(R"({"messages": [{"role": "user", "content": "x"}]})"), strict);
  try {
    render(r.chat, strict);
    ADD_FAILURE();
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 400);
    EXPECT_NE(std::string(e.what()).find("only users"), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find("secret"), std::string::npos) << e.what();
  }
  const TextModel broken = model("\n{{ messages[0].x.y }}");
  try {
    render(r.chat, broken);
    ADD_FAILURE();
  } catch (const ApiError& e) {
    EXPECT_NE(std::string(e.what()).find("the chat template fails in line 2, attribute 'y': "),
              std::string::npos)
        << e.what();
    EXPECT_EQ(std::string(e.what()).find("secret"), std::string::npos) << e.what();
  }
}

// Tool-call arguments are text in requests and objects in templates.
TEST(ChatRequest, EarlierCallsOfTools) {
  const TextModel with_tools = model(
      "{# <tool_call> #}{% for m in messages %}{{ m.role }}|{{ m.content }}|"
      "{% for c in m.tool_calls or [] %}{{ c.function.name }}={{ c.function.arguments.a }}"
      "{% endfor %};{% endfor %}");
  const ChatRequest r = read_chat(Json::parse(
                                      R"({"messages": [{"role": "developer", "content": "d"},
                           {"role": "assistant", "content": null, "tool_calls":
                            [{"id": "1", "type": "function",
                              "function": {"name": "f", "arguments": "{\"a\": 3}"}}]},
                           {"role": "tool", "tool_call_id": "1", "content": "9"}]})"),
                                  with_tools);
  EXPECT_EQ(render(r.chat, with_tools).text, "system|d|;assistant||f=3;tool|9|;");
}

TEST(ChatRequest, IntegersBeyond64BitsAreRenderedAsTheyAreWritten) {
  const TextModel shows = model(
      "{# <tool_call> #}{{ tools[0].function.parameters | tojson }}{% for m in messages %}"
      "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
      "{{ id + 1 }}");
  const std::string schema =
      R"({"maximum": 18446744073709551615, "minimum": -9223372036854775809})";
  const ChatRequest r = read_chat(Json::parse(R"({"messages": [{"role": "user", "content": "x"},
                      {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function":
                       {"name": "f", "arguments": "{\"id\": 18446744073709551615}"}}]}],
                      "chat_template_kwargs": {"id": 99999999999999999999},
                      "tools": [{"type": "function", "function": {"name": "f", "parameters": )" +
                                              schema + "}}]}"),
                                  shows);
  EXPECT_EQ(render(r.chat, shows).text,
            schema + R"({"id": 18446744073709551615})" + "100000000000000000000");
}

TEST(ChatRequest, ToolsNeedAForm) {
  const std::string body = R"({"messages": [{"role": "user", "content": "x"}],
                               "tools": [{"type": "function", "function": {"name": "f"}}])";
  const TextModel without = model("{{ messages }}"), with = model("{# <tool_call> #}");
  EXPECT_EQ(param_of([&] { read_chat(Json::parse(body + "}"), without); }), "tools");
  EXPECT_TRUE(read_chat(Json::parse(body + "}"), with).calls_tools);
  const ChatRequest none = read_chat(Json::parse(body + R"(, "tool_choice": "none"})"), without);
  EXPECT_FALSE(none.calls_tools);
  EXPECT_FALSE(none.chat.tools);
}

}  // namespace
}  // namespace megatron::server
