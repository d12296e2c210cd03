// A server's answers equal the engine's results, and the parts of a stream together are the whole
// answer.
#include <cmath>
#include <cstring>

#include "golden/server/support.h"
#include "inference/expert_choices.h"
#include "server/chat_request.h"
#include "tokenizers/base64.h"

namespace megatron::testing {
namespace {

class Answers : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = new ServedModel; }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }

  // The engine's own text for a prompt, up to a byte 0.
  static inference::Generation own(const std::string& prompt, int64_t max_tokens,
                                   const inference::SamplingOptions& sampling, uint64_t number = 0,
                                   int64_t logprobs = -1) {
    inference::Request request{.number = number,
                               .prompt = Tokens(prompt.begin(), prompt.end()),
                               .max_tokens = max_tokens,
                               .sampling = sampling,
                               .end_tokens = {0},
                               .logprobs = logprobs};
    RandomModel same(gpt2_shape(1, 16, 2, 256, kServedPositions), DType::f32, 1);
    return inference::generate(same.model, same.runtime, {&request, 1}, {.vocabulary = 256})[0];
  }
  static std::string text_of(const inference::Generation& generation) {
    tokenizers::DecodeStream stream(served_->text.tokenizer());
    std::string text;
    for (const auto& token : generation.tokens)
      if (token.draw.token != 0) text += stream.push(token.draw.token);
    return text + stream.finish();
  }

  static ServedModel* served_;
};
ServedModel* Answers::served_ = nullptr;

TEST_F(Answers, CompletionsAreTheEnginesOwn) {
  const Json answer = served_->get(
      "/v1/completions",
      R"({"model": "tiny", "prompt": ["Hello", "A b"], "n": 2, "max_tokens": 20, "seed": 5,
          "temperature": 0.9, "top_k": 100, "logprobs": 3})");
  EXPECT_EQ(answer["object"], Json("text_completion"));
  EXPECT_EQ(answer["model"], Json("tiny"));
  const Json::Array& choices = answer["choices"].as_array();
  ASSERT_EQ(choices.size(), 4u);
  const inference::SamplingOptions sampling{.temperature = 0.9, .top_k = 100, .seed = 5};
  int64_t generated = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto own = Answers::own(i < 2 ? "Hello" : "A b", 20, sampling, i, 3);
    generated += std::ssize(own.tokens);
    EXPECT_EQ(choices[i]["text"].as_string(), text_of(own));
    EXPECT_EQ(choices[i]["index"].as_integer(), static_cast<int64_t>(i));
    const bool ended = own.finish == inference::Finish::end_token;
    EXPECT_EQ(choices[i]["finish_reason"].as_string(), ended ? "stop" : "length");
    const Json& logprobs = choices[i]["logprobs"];
    const size_t tokens = own.tokens.size();  // the end token has a log-probability too
    ASSERT_EQ(logprobs["token_logprobs"].as_array().size(), tokens);
    for (size_t t = 0; t < tokens; ++t) {
      EXPECT_EQ(logprobs["token_logprobs"].as_array()[t].as_number(),
                own.tokens[t].draw.log_probability);
      EXPECT_GE(logprobs["top_logprobs"].as_array()[t].as_object().size(), 3u);
    }
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"].as_integer(), 8);
  EXPECT_EQ(answer["usage"]["completion_tokens"].as_integer(), generated);
}

TEST_F(Answers, TokensAreAPromptToo) {
  const auto text = [&](const std::string& prompt) {
    return served_
        ->get("/v1/completions",
              R"({"temperature": 0, "max_tokens": 8, "prompt": )" + prompt + "}")["choices"]
        .as_array()[0]["text"]
        .as_string();
  };
  EXPECT_EQ(text("[72, 101, 108]"), text(R"("Hel")"));
  EXPECT_EQ(text("[[72, 101, 108], [65]]"), text(R"("Hel")"));
}

// Returns all tokens including the prompt's, whose first token has no probability.
TEST_F(Answers, Echo) {
  const Json answer = served_->get(
      "/v1/completions", R"({"prompt": "Hallo", "echo": true, "logprobs": 0, "max_tokens": 0})");
  const Json& choice = answer["choices"].as_array()[0];
  EXPECT_EQ(choice["text"], Json("Hallo"));
  const Json& logprobs = choice["logprobs"];
  const auto own = Answers::own("Hallo", 0, {}, 0, 0);
  ASSERT_EQ(logprobs["token_logprobs"].as_array().size(), 5u);
  EXPECT_TRUE(logprobs["token_logprobs"].as_array()[0].is_null());
  for (size_t i = 1; i < 5; ++i)
    EXPECT_EQ(logprobs["token_logprobs"].as_array()[i].as_number(),
              own.prompt_log_probabilities[i - 1]);
  EXPECT_EQ(logprobs["text_offset"], Json(Json::Array{0, 1, 2, 3, 4}));
  EXPECT_EQ(answer["usage"]["completion_tokens"].as_integer(), 0);

  const std::string more = R"("prompt": "Hallo", "seed": 3, "logprobs": 1, "max_tokens": 9)";
  const Json plain = served_->get("/v1/completions", "{" + more + "}")["choices"].as_array()[0];
  const Json echoed =
      served_->get("/v1/completions", R"({"echo": true, )" + more + "}")["choices"].as_array()[0];
  EXPECT_EQ(echoed["text"].as_string(), "Hallo" + plain["text"].as_string());
  const auto& likely = echoed["logprobs"]["top_logprobs"].as_array();
  EXPECT_TRUE(likely[0].is_null());
  for (size_t i = 1; i < 5; ++i) {
    const Json::Object& names = likely[i].as_object();  // the most likely token and the prompt's
    const Json& own_value = echoed["logprobs"]["token_logprobs"].as_array()[i];
    EXPECT_EQ(names.back().second, own_value);
    EXPECT_EQ(names.size(), names[0].second == own_value ? 1u : 2u);
    EXPECT_GE(names[0].second.as_number(), own_value.as_number());
  }
  const auto& offsets = plain["logprobs"]["text_offset"].as_array();
  const auto& after = echoed["logprobs"]["text_offset"].as_array();
  ASSERT_EQ(after.size(), offsets.size() + 5);
  for (size_t i = 0; i < offsets.size(); ++i)
    EXPECT_EQ(after[i + 5].as_integer(), offsets[i].as_integer() + 5);
}

// Same format as vLLM: for each token except the first, itself and the most likely ones, by id.
TEST_F(Answers, LogprobsOfPrompts) {
  const std::string more = R"("max_tokens": 3, "seed": 3, )";
  const Json answer = served_->get("/v1/completions", R"({"prompt": ["Hallo", "A"], "n": 2, )" +
                                                          more + R"("prompt_logprobs": 2})");
  const auto& choices = answer["choices"].as_array();
  EXPECT_EQ(choices[0]["prompt_logprobs"], choices[1]["prompt_logprobs"]);
  EXPECT_EQ(choices[2]["prompt_logprobs"], Json(Json::Array{Json()}));
  EXPECT_TRUE(choices[0]["logprobs"].is_null());
  const auto& tokens = choices[0]["prompt_logprobs"].as_array();
  const auto own = Answers::own("Hallo", 0, {}, 0, 0);
  ASSERT_EQ(tokens.size(), 5u);
  EXPECT_TRUE(tokens[0].is_null());
  for (size_t i = 1; i < 5; ++i) {
    const std::string text(1, "Hallo"[i]);
    const Json& one = tokens[i][std::to_string(static_cast<int>(text[0]))];
    EXPECT_EQ(one["logprob"].as_number(), own.prompt_log_probabilities[i - 1]);
    EXPECT_EQ(one["decoded_token"], Json(text));
    const int64_t rank = one["rank"].as_integer();
    EXPECT_EQ(tokens[i].as_object().size(), rank <= 2 ? 2u : 3u);
    for (const auto& [id, other] : tokens[i].as_object()) {
      EXPECT_EQ(other["rank"].as_integer() < rank,
                other["logprob"].as_number() > one["logprob"].as_number());
    }
  }
  // prompt_logprobs changes nothing else, and may differ from the number of alternatives of the
  // text.
  const Json plain =
      served_->get("/v1/completions",
                   R"({"prompt": "Hallo", "echo": true, "logprobs": 1, )" + more + R"("n": 1})");
  const Json both = served_->get("/v1/completions", R"({"prompt": "Hallo", "echo": true,
      "logprobs": 1, "prompt_logprobs": 2, )" + more + R"("n": 1})");
  EXPECT_EQ(both["choices"].as_array()[0]["logprobs"], plain["choices"].as_array()[0]["logprobs"]);
  EXPECT_EQ(both["choices"].as_array()[0]["prompt_logprobs"], choices[0]["prompt_logprobs"]);

  const Json scored = served_->get("/v1/completions",
                                   R"({"prompt": "Hallo", "max_tokens": 0, "prompt_logprobs": 2})");
  EXPECT_EQ(scored["choices"].as_array()[0]["prompt_logprobs"], choices[0]["prompt_logprobs"]);

  const Json chat = served_->get("/v1/chat/completions", R"({"messages": [{"role": "user",
      "content": "x"}], "prompt_logprobs": 0, )" + more + R"("n": 1})");
  ASSERT_EQ(chat["prompt_logprobs"].as_array().size(), 6u);  // "u:x\na:"
  EXPECT_EQ(chat["prompt_logprobs"].as_array()[2].as_object().size(), 1u);
  EXPECT_EQ(chat["prompt_logprobs"].as_array()[2]["120"]["decoded_token"], Json("x"));
}

TEST_F(Answers, BestOfAnswersTheMostProbable) {
  const std::string same = R"("prompt": "x", "seed": 11, "max_tokens": 6, "logprobs": 0)";
  const Json all = served_->get("/v1/completions", R"({"n": 6, )" + same + "}");
  const Json best = served_->get("/v1/completions", R"({"n": 2, "best_of": 6, )" + same + "}");
  const auto mean = [](const Json& choice) {
    double sum = 0;
    const auto& values = choice["logprobs"]["token_logprobs"].as_array();
    for (const Json& value : values) sum += value.as_number();
    return sum / static_cast<double>(values.size());
  };
  std::vector<std::pair<double, std::string>> ranked;
  for (const Json& choice : all["choices"].as_array())
    ranked.emplace_back(mean(choice), choice["text"].as_string());
  std::ranges::sort(ranked, std::greater());
  ASSERT_EQ(best["choices"].as_array().size(), 2u);
  EXPECT_EQ(best["choices"].as_array()[0]["text"].as_string(), ranked[0].second);
  EXPECT_EQ(best["choices"].as_array()[1]["text"].as_string(), ranked[1].second);
  EXPECT_EQ(best["usage"], all["usage"]);
}

// A stop string ends the text before it; tokens after the end are not returned.
TEST_F(Answers, Stops) {
  const std::string same = R"("prompt": "Hello", "seed": 2, "max_tokens": 40, "logprobs": 0)";
  const Json whole = served_->get("/v1/completions", "{" + same + "}")["choices"].as_array()[0];
  const std::string text = whole["text"].as_string();
  size_t at = 10;
  while (static_cast<unsigned char>(text[at]) >= 0x80) ++at;
  const std::string stop(1, text[at]);
  const Json body = Json(Json::Object{{"prompt", "Hello"},
                                      {"seed", 2},
                                      {"max_tokens", 40},
                                      {"logprobs", 0},
                                      {"stop", Json::Array{"\x01\x02 never", stop}}});
  const Json cut = served_->get("/v1/completions", body.dump())["choices"].as_array()[0];
  EXPECT_EQ(cut["text"].as_string(), text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["finish_reason"], Json("stop"));
  const auto& kept = cut["logprobs"]["token_logprobs"].as_array();
  const auto& all = whole["logprobs"]["token_logprobs"].as_array();
  EXPECT_LT(kept.size(), all.size());
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), all.begin()));

  const Json by_token =
      served_
          ->get("/v1/completions",
                R"({"prompt": "Hello", "seed": 2, "max_tokens": 40, "stop_token_ids": [)" +
                    std::to_string(static_cast<int>(stop[0])) + "]}")["choices"]
          .as_array()[0];
  EXPECT_EQ(by_token["text"], cut["text"]);
}

TEST_F(Answers, StreamsAreTheWholeAnswer) {
  for (const std::string& more :
       {std::string(R"("n": 2)"), std::string(R"("logprobs": 2, "echo": true)"),
        std::string(R"("logprobs": 1, "stop": ["e", "zz", "\n"])"),
        std::string(R"("stream_options": {"include_usage": true})")}) {
    const std::string same = R"("prompt": ["Hello", "Zürich"], "seed": 8, "max_tokens": 40, )";
    std::string plain = more;
    if (plain.starts_with("\"stream")) plain = R"("user": "me")";
    const Json whole = served_->get("/v1/completions", "{" + same + plain + "}");
    const auto events =
        served_->stream("/v1/completions", R"({"stream": true, )" + same + more + "}");
    const size_t choices = whole["choices"].as_array().size();
    std::vector<std::string> texts(choices), reasons(choices);
    std::vector<Json::Array> logprobs(choices), offsets(choices);
    Json usage;
    for (const Json& event : events) {
      if (event.contains("usage") && !event["usage"].is_null()) usage = event["usage"];
      for (const Json& choice : event["choices"].as_array()) {
        const auto c = static_cast<size_t>(choice["index"].as_integer());
        EXPECT_TRUE(reasons[c].empty()) << "nothing follows the end";
        texts[c] += choice["text"].as_string();
        if (!choice["finish_reason"].is_null()) reasons[c] = choice["finish_reason"].as_string();
        if (choice["logprobs"].is_null()) continue;
        for (const Json& value : choice["logprobs"]["token_logprobs"].as_array())
          logprobs[c].push_back(value);
        for (const Json& value : choice["logprobs"]["text_offset"].as_array())
          offsets[c].push_back(value);
      }
    }
    EXPECT_EQ(usage.is_null(), more == plain);
    if (!usage.is_null()) {
      EXPECT_EQ(usage, whole["usage"]);
    }
    for (size_t c = 0; c < choices; ++c) {
      const Json& expected = whole["choices"].as_array()[c];
      EXPECT_EQ(texts[c], expected["text"].as_string());
      EXPECT_EQ(reasons[c], expected["finish_reason"].as_string());
      if (expected["logprobs"].is_null()) continue;
      EXPECT_EQ(Json(logprobs[c]), expected["logprobs"]["token_logprobs"]);
      EXPECT_EQ(Json(offsets[c]), expected["logprobs"]["text_offset"]);
    }
  }
}

// Renders the messages with the template and continues them.
TEST_F(Answers, ChatsContinueTheRenderedTemplate) {
  const std::string body =
      R"({"messages": [{"role": "system", "content": "be"},
                       {"role": "user", "content": [{"type": "text", "text": "Hi "},
                                                    {"type": "text", "text": "you"}]}],
          "seed": 4, "max_completion_tokens": 12, "logprobs": true, "top_logprobs": 2, "n": 2})";
  const Json chat = served_->get("/v1/chat/completions", body);
  EXPECT_EQ(chat["object"], Json("chat.completion"));
  const Json text = served_->get(
      "/v1/completions",
      R"({"prompt": "s:be\nu:Hi you\na:", "seed": 4, "max_tokens": 12, "logprobs": 2, "n": 2})");
  for (size_t c = 0; c < 2; ++c) {
    const Json& choice = chat["choices"].as_array()[c];
    const Json& same = text["choices"].as_array()[c];
    EXPECT_EQ(choice["message"]["role"], Json("assistant"));
    EXPECT_EQ(choice["message"]["content"], same["text"]);
    EXPECT_EQ(choice["finish_reason"], same["finish_reason"]);
    const auto& content = choice["logprobs"]["content"].as_array();
    ASSERT_EQ(content.size(), same["logprobs"]["tokens"].as_array().size());
    for (size_t t = 0; t < content.size(); ++t) {
      EXPECT_EQ(content[t]["logprob"], same["logprobs"]["token_logprobs"].as_array()[t]);
      EXPECT_EQ(content[t]["top_logprobs"].as_array().size(), 2u);
      EXPECT_EQ(content[t]["bytes"].as_array().size(), 1u);
    }
  }
  EXPECT_EQ(chat["usage"], text["usage"]);

  const auto events =
      served_->stream("/v1/chat/completions", R"({"stream": true, )" + body.substr(1));
  std::vector<std::string> said(2);
  std::vector<Json::Array> logprobs(2);
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], Json("chat.completion.chunk"));
    const Json& choice = event["choices"].as_array()[0];
    const auto c = static_cast<size_t>(choice["index"].as_integer());
    if (const Json* content = choice["delta"].find("content")) said[c] += content->as_string();
    if (choice["logprobs"].is_null()) continue;
    for (const Json& one : choice["logprobs"]["content"].as_array()) logprobs[c].push_back(one);
  }
  for (size_t c = 0; c < 2; ++c) {
    const Json& choice = chat["choices"].as_array()[c];
    EXPECT_EQ(Json(said[c]), choice["message"]["content"]);
    EXPECT_EQ(Json(logprobs[c]), choice["logprobs"]["content"]);
  }
}

// The plain chat format, and the strings that end an answer in it.
TEST_F(Answers, ChatsOfAModelWithoutATemplate) {
  ServedModel bare(served_options(), "");
  const auto prompt = [&](const std::string& rest) {
    const std::string messages =
        R"({"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"})";
    return bare
        .get("/detokenize",
             Json(Json::Object{{"tokens", bare.get("/tokenize", messages + rest)["tokens"]}})
                 .dump())["prompt"]
        .as_string();
  };
  EXPECT_EQ(prompt("]}"), "system:\nBe kind.\n\nuser:\nhi\n\nassistant:\n");
  EXPECT_EQ(prompt(R"(, {"role": "assistant", "content": "So"}], "continue_final_message": true})"),
            "system:\nBe kind.\n\nuser:\nhi\n\nassistant:\nSo");
  EXPECT_EQ(prompt(R"(], "tools": [{"type": "function", "function": {"name": "f"}}]})"),
            "tools:\n[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]\n\n"
            "system:\nBe kind.\n\nuser:\nhi\n\nassistant:\n");
  const std::string chat =
      R"({"messages": [{"role": "user", "content": "hi"}], "seed": 1, "max_tokens": 8})";
  const Json answer = bare.get("/v1/chat/completions", chat);
  EXPECT_EQ(answer["usage"]["prompt_tokens"].as_integer(), 21);
  const httplib::Result models = bare.client().Get("/v1/models");
  ASSERT_TRUE(models);
  EXPECT_FALSE(Json::parse(models->body)["data"].as_array()[0]["chat"].as_bool());
  const server::ChatRequest read = server::read_chat(Json::parse(chat), bare.text);
  EXPECT_EQ(read.generation.stops,
            (std::vector<std::string>{"\n\nuser:", "\n\nassistant:", "\n\nsystem:", "\n\ntool:"}));
  EXPECT_TRUE(server::read_chat(Json::parse(chat), served_->text).generation.stops.empty());
}

TEST_F(Answers, ChatsGoOnWithAMessageAndWithVariables) {
  const auto content = [&](const std::string& more) {
    return served_
        ->get("/v1/chat/completions",
              R"({"temperature": 0, "max_tokens": 6, "messages": [)" + more)["choices"]
        .as_array()[0]["message"]["content"]
        .as_string();
  };
  const auto continued = [&](const std::string& prompt) {
    return served_
        ->get("/v1/completions",
              Json(Json::Object{{"temperature", 0}, {"max_tokens", 6}, {"prompt", prompt}})
                  .dump())["choices"]
        .as_array()[0]["text"]
        .as_string();
  };
  EXPECT_EQ(content(R"({"role": "user", "content": "x"}, {"role": "assistant", "content": "so"}],
                       "continue_final_message": true})"),
            continued("u:x\na:so"));
  EXPECT_EQ(content(R"({"role": "user", "content": "x"}],
                       "chat_template_kwargs": {"think": true}})"),
            continued("u:x\na:<think></think>"));
  // Tools are part of the prompt if the model may call them.
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(content(R"({"role": "user", "content": "x"}], )" + tools + "}"),
            continued("[f ]<tool_call>u:x\na:"));
  EXPECT_EQ(content(R"({"role": "user", "content": "x"}], "tool_choice": "none", )" + tools + "}"),
            continued("u:x\na:"));
}

TEST_F(Answers, ModelsTokensAndHealth) {
  const httplib::Result models = served_->client().Get("/v1/models");
  ASSERT_TRUE(models);
  const Json model = Json::parse(models->body)["data"].as_array()[0];
  EXPECT_EQ(model["id"], Json("tiny"));
  EXPECT_EQ(model["max_model_len"].as_integer(), kServedPositions);
  EXPECT_EQ(served_->get("/tokenize", R"({"prompt": "Aé"})")["tokens"],
            Json(Json::Array{65, 195, 169}));
  EXPECT_EQ(
      served_->get("/tokenize", R"({"messages": [{"role": "user", "content": "A"}]})")["count"],
      Json(6));
  EXPECT_EQ(served_->get("/detokenize", R"({"tokens": [65, 195, 169]})")["prompt"], Json("Aé"));
  for (const char* path : {"/v1/models/tiny", "/v1/models/t%69ny"}) {
    const httplib::Result one = served_->client().Get(path);
    ASSERT_TRUE(one);
    EXPECT_EQ(one->status, 200) << path;
    EXPECT_EQ(Json::parse(one->body), model);
  }
  for (const char* path : {"/v1/models/tin", "/v1/models/org%2Ftiny", "/v1/models/a%00b"}) {
    const httplib::Result none = served_->client().Get(path);
    ASSERT_TRUE(none);
    EXPECT_EQ(none->status, 404) << path;
    EXPECT_EQ(Json::parse(none->body)["error"]["code"], Json("model_not_found"));
  }
  const httplib::Result health = served_->client().Get("/health");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
}

// The mean of the output layer's inputs, normalized to length 1.
TEST_F(Answers, Embeddings) {
  const Json answer =
      served_->get("/v1/embeddings", R"({"model": "tiny", "input": ["Hello", [65, 66, 67]]})");
  EXPECT_EQ(answer["usage"]["prompt_tokens"].as_integer(), 8);
  RandomModel same(gpt2_shape(1, 16, 2, 256, kServedPositions), DType::f32, 1);
  const nn::Batch batch = whole_batch(same, {{65, 66, 67}});
  Tape tape(same.runtime, Tape::Mode::infer);
  const Bundle out = models::forward(same.model, tape, {}, batch, models::Phase::evaluate);
  const std::vector<float> hidden = to_floats(same.model.final_norm(tape, out).value);
  std::vector<double> mean(16);
  for (size_t i = 0; i < hidden.size(); ++i) mean[i % 16] += hidden[i];
  const double length = std::sqrt(std::inner_product(mean.begin(), mean.end(), mean.begin(), 0.0));
  const auto& values = answer["data"].as_array()[1]["embedding"].as_array();
  ASSERT_EQ(values.size(), mean.size());
  for (size_t i = 0; i < mean.size(); ++i)
    EXPECT_NEAR(values[i].as_number(), mean[i] / length, 1e-6);

  const Json packed =
      served_->get("/v1/embeddings", R"({"input": "ABC", "encoding_format": "base64"})");
  std::string bytes;
  ASSERT_TRUE(
      tokenizers::append_base64(packed["data"].as_array()[0]["embedding"].as_string(), bytes));
  ASSERT_EQ(bytes.size(), 64u);
  for (size_t i = 0; i < mean.size(); ++i) {
    float value = 0;
    std::memcpy(&value, bytes.data() + 4 * i, sizeof value);
    EXPECT_EQ(double{value}, values[i].as_number());
  }
}

// The endpoint of Megatron-LM's static server, which returns texts with their prompts.
TEST_F(Answers, MegatronsOwnEndpoint) {
  const std::string body = R"({"prompts": ["Hello", "A"], "tokens_to_generate": 5, "top_k": 1,
                               "logprobs": true, "no_log": true})";
  const httplib::Result result = served_->client().Put("/api", body, "application/json");
  ASSERT_TRUE(result);
  ASSERT_EQ(result->status, 200) << result->body;
  const Json answer = Json::parse(result->body);
  const auto own = Answers::own("Hello", 5, {.top_k = 1}, 0, 0);
  EXPECT_EQ(answer["text"].as_array()[0].as_string(), "Hello" + text_of(own));
  const auto& logprobs = answer["logprobs"].as_array()[0].as_array();
  const auto& segments = answer["segments"].as_array()[0].as_array();
  EXPECT_EQ(segments.size(), logprobs.size() + 1);
  EXPECT_EQ(segments[0], Json("H"));
  ASSERT_GE(logprobs.size(), 4u);
  EXPECT_EQ(logprobs[0].as_number(), own.prompt_log_probabilities[0]);
}

// Layer 0 is dense. Byte 0 ends a text.
TEST(RoutedExperts, AreThoseOfTheEngine) {
  models::ModelFlags flags = gpt2_shape(3, 16, 2, 256, kServedPositions);
  flags.moe.num_experts = 4;
  flags.moe.topk = 2;
  flags.moe.layer_freq = "[0,1,1]";
  const ServedModel served(served_options(), kChatTemplate, flags);
  const std::string more = R"("max_tokens": 5, "temperature": 0, "return_routed_experts": true})";
  const Json answer = served.get("/v1/completions", R"({"prompt": "Hello", )" + more);
  const Json choice = answer["choices"].as_array()[0];
  inference::Request request{.prompt = {'H', 'e', 'l', 'l', 'o'},
                             .max_tokens = 5,
                             .sampling = {.temperature = 0},
                             .end_tokens = {0},
                             .expert_choices = true};
  RandomModel same(flags, DType::f32, 1);
  const auto own =
      inference::generate(same.model, same.runtime, {&request, 1}, {.vocabulary = 256})[0];
  ASSERT_EQ(own.expert_choices.size(), (4 + own.tokens.size()) * 4);
  EXPECT_EQ(
      choice["routed_experts"],
      inference::expert_choices_json(own.expert_choices, *same.model.model()->facts().experts));
  const Json chat = served.get("/v1/chat/completions",
                               R"({"messages": [{"role": "user", "content": "x"}], )" + more);
  EXPECT_GE(chat["choices"].as_array()[0]["routed_experts"].as_array().size(), 6u);
  const httplib::Result streamed =
      served.post("/v1/completions", R"({"prompt": "Hello", "stream": true, )" + more);
  ASSERT_TRUE(streamed);
  EXPECT_EQ(streamed->status, 400);
  EXPECT_NE(streamed->body.find("return_routed_experts"), std::string::npos) << streamed->body;
}

}  // namespace
}  // namespace megatron::testing
