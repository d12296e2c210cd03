// Bad requests: each is answered by its field, and the server goes on.
#include <chrono>

#include "golden/server/support.h"

namespace megatron::testing {
namespace {

class Errors : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = new ServedModel; }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }
  static ServedModel* served_;

  // The body is refused with this status and field.
  static void refused(const std::string& path, const std::string& body, const std::string& param,
                      int status = 400) {
    const httplib::Result result = served_->post(path, body);
    ASSERT_TRUE(result) << body;
    EXPECT_EQ(result->status, status) << body << "\n" << result->body;
    EXPECT_EQ(result->get_header_value("Content-Type"), "application/json");
    const Json error = Json::parse(result->body)["error"];
    EXPECT_FALSE(error["message"].as_string().empty());
    EXPECT_EQ(error["param"], param.empty() ? Json() : Json(param)) << body << "\n" << result->body;
  }
};
ServedModel* Errors::served_ = nullptr;

TEST_F(Errors, FieldsOfCompletions) {
  const auto field = [](const std::string& fields, const std::string& param, int status = 400) {
    refused("/v1/completions", R"({"prompt": "x", )" + fields + "}", param, status);
  };
  field(R"("model": "other")", "model", 404);
  field(R"("model": 3)", "model");
  field(R"("temperature": 2.5)", "temperature");
  field(R"("temperature": "hot")", "temperature");
  field(R"("temperature": -0.1)", "temperature");
  field(R"("top_p": 0)", "top_p");
  field(R"("top_p": 1.01)", "top_p");
  field(R"("top_k": 1.5)", "top_k");
  field(R"("top_k": -2)", "top_k");
  field(R"("min_p": 2)", "min_p");
  field(R"("repetition_penalty": 0)", "repetition_penalty");
  field(R"("presence_penalty": 3)", "presence_penalty");
  field(R"("frequency_penalty": -2.1)", "frequency_penalty");
  field(R"("logit_bias": {"x": 1})", "logit_bias");
  field(R"("logit_bias": {"256": 1})", "logit_bias");
  field(R"("logit_bias": {"1": 101})", "logit_bias");
  field(R"("logit_bias": [1])", "logit_bias");
  field(R"("seed": 1.5)", "seed");
  field(R"("max_tokens": -1)", "max_tokens");
  field(R"("max_tokens": 0)", "max_tokens");
  field(R"("max_tokens": 1000)", "prompt");
  field(R"("max_tokens": 1e30)", "max_tokens");
  field(R"("min_tokens": 20, "max_tokens": 10)", "min_tokens");
  field(R"("n": 0)", "n");
  field(R"("n": 129)", "n");
  field(R"("best_of": 1, "n": 2)", "best_of");
  field(R"("best_of": 3, "stream": true)", "best_of");
  field(R"("logprobs": 21)", "logprobs");
  field(R"("logprobs": true)", "logprobs");
  field(R"("echo": 1)", "echo");
  field(R"("stop": "")", "stop");
  field(R"("stop": [1])", "stop");
  field(R"("stop": {"a": 1})", "stop");
  field(R"("stop": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"])", "stop");
  field(R"("stop_token_ids": [256])", "stop_token_ids");
  field(R"("stop_token_ids": 1)", "stop_token_ids");
  field(R"("stream": "yes")", "stream");
  field(R"("stream_options": {"include_usage": true})", "stream_options");
  field(R"("stream": true, "stream_options": {"include_usage": 1})",
        "stream_options.include_usage");
  field(R"("suffix": "end")", "suffix");
  field(R"("guided_json": {"type": "object"})", "guided_json");
  for (const std::string& prompt :
       {std::string("3"), std::string("[]"), std::string("[[]]"), std::string("[256]"),
        std::string("[-1]"), std::string("[1, \"a\"]"), std::string("[\"a\", 1]"),
        std::string("{}"), std::string("null"), std::string("[1.5]")})
    refused("/v1/completions", R"({"prompt": )" + prompt + "}", "prompt");
  refused("/v1/completions", R"({"prompt": ")" + std::string(200, 'x') + "\"}", "prompt");
  refused("/v1/completions", R"({"prompt": ["a", "b"], "n": 100})", "n");
  EXPECT_EQ(served_
                ->get("/v1/completions",
                      R"({"prompt": "x", "max_tokens": 1, "suffix": null, "user": "me",
                             "metadata": {"a": "b"}, "no such field": 3})")["choices"]
                .as_array()
                .size(),
            1u);
}

TEST_F(Errors, FieldsOfChats) {
  const auto message = [](const std::string& text, const std::string& param) {
    refused("/v1/chat/completions", R"({"messages": [)" + text + "]}", param);
  };
  message("", "messages");
  message("3", "messages[0]");
  message(R"({"content": "x"})", "messages[0].role");
  message(R"({"role": "boss", "content": "x"})", "messages[0].role");
  message(R"({"role": "user"})", "messages[0].content");
  message(R"({"role": "user", "content": 3})", "messages[0].content");
  message(R"({"role": "user", "content": "x"}, {"role": "user", "content": ["x"]})",
          "messages[1].content");
  message(R"({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})",
          "messages[0].content");
  message(R"({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]})",
          "messages[0].tool_calls");
  message(R"({"role": "assistant",
              "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]})",
          "messages[0].tool_calls");
  const auto field = [](const std::string& fields, const std::string& param) {
    refused("/v1/chat/completions",
            R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}", param);
  };
  field(R"("top_logprobs": 3)", "top_logprobs");
  field(R"("logprobs": 3)", "logprobs");
  field(R"("logprobs": true, "top_logprobs": 21)", "top_logprobs");
  field(R"("max_completion_tokens": "many")", "max_completion_tokens");
  field(R"("tools": [{"type": "function"}])", "tools");
  field(R"("tools": {})", "tools");
  field(R"("tool_choice": "maybe")", "tool_choice");
  field(R"("response_format": {"type": "yaml"})", "response_format.type");
  field(R"("response_format": 3)", "response_format");
  field(R"("chat_template": "{{ messages }}")", "chat_template");
  field(R"("chat_template_kwargs": {"messages": []})", "chat_template_kwargs");
  field(R"("continue_final_message": true, "add_generation_prompt": true)",
        "continue_final_message");
  field(R"("modalities": ["audio"])", "modalities");
  field(R"("functions": [{"name": "f"}])", "functions");
  refused("/v1/chat/completions", "{}", "messages");
  message(R"({"role": "user", "content": ")" + std::string(200, 'x') + "\"}", "messages");
  const ServedModel bare(served_options(), "");
  const httplib::Result result =
      bare.post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "x"}]})");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 400);
  EXPECT_NE(result->body.find("no_chat_template"), std::string::npos) << result->body;
}

TEST_F(Errors, FieldsOfEmbeddings) {
  refused("/v1/embeddings", "{}", "input");
  refused("/v1/embeddings", R"({"input": []})", "input");
  refused("/v1/embeddings", R"({"input": [300]})", "input");
  refused("/v1/embeddings", R"({"input": "x", "encoding_format": "hex"})", "encoding_format");
  refused("/v1/embeddings", R"({"input": "x", "dimensions": 3})", "dimensions");
  refused("/v1/embeddings", R"({"input": ")" + std::string(200, 'x') + "\"}", "input");
}

TEST_F(Errors, FieldsOfMegatronsEndpoint) {
  for (const auto& [body, param] :
       {std::pair<std::string, std::string>{"{}", "prompts"},
        {R"({"prompts": []})", "prompts"},
        {R"({"prompts": "x"})", "prompts"},
        {R"({"prompts": [""]})", "prompts"},
        {R"({"prompts": ["x"], "max_len": 3})", "max_len"},
        {R"({"sentences": ["x"]})", "sentences"},
        {R"({"prompts": ["x"], "tokens_to_generate": -1})", "tokens_to_generate"},
        {R"({"prompts": ["x"], "tokens_to_generate": 0})", "tokens_to_generate"},
        {R"({"prompts": ["x"], "temperature": 0})", "temperature"},
        {R"({"prompts": ["x"], "top_k": 2, "top_p": 0.5})", "top_p"},
        {R"({"prompts": ["x"], "top_k": 1001})", "top_k"},
        {R"({"prompts": ["x"], "random_seed": -1})", "random_seed"},
        {R"({"prompts": ["x"], "logprobs": 1})", "logprobs"},
        {R"({"prompts": ["x"], "beam_width": 4})", "beam_width"}}) {
    const httplib::Result result = served_->client().Put("/api", body, "application/json");
    ASSERT_TRUE(result) << body;
    EXPECT_EQ(result->status, 400) << body;
    EXPECT_EQ(Json::parse(result->body)["error"]["param"], Json(param)) << result->body;
  }
}

TEST_F(Errors, BodiesThatAreNoJson) {
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("3"), std::string("nul"),
        std::string("{\"prompt\": \"\xff\xfe\"}"), std::string("{\"prompt\": \"\xed\xa0\x80\"}"),
        std::string(R"({"prompt": "a", "prompt": "b"})"), std::string(100000, '['),
        std::string("{\"prompt\": 1e999}"), std::string("\0\0\0", 3)}) {
    const httplib::Result result = served_->post("/v1/completions", body);
    ASSERT_TRUE(result) << body.substr(0, 50);
    EXPECT_EQ(result->status, 400) << body.substr(0, 50);
    EXPECT_TRUE(Json::parse(result->body)["error"]["message"].is_string());
  }
}

TEST_F(Errors, PathsMethodsAndTypes) {
  auto client = served_->client();
  const auto status = [](const httplib::Result& result) { return result ? result->status : -1; };
  EXPECT_EQ(status(client.Get("/nothing")), 404);
  EXPECT_EQ(status(client.Get("/v1/models/../../etc/passwd")), 404);
  EXPECT_EQ(status(client.Get("/" + std::string(2000, 'x'))), 404);
  EXPECT_EQ(status(client.Get("/" + std::string(9000, 'x'))), 414);
  EXPECT_EQ(status(client.Get("/v1/completions")), 405);
  EXPECT_EQ(status(client.Delete("/v1/models")), 405);
  EXPECT_EQ(status(client.Post("/v1/completions", "{}", "text/plain")), 415);
  EXPECT_EQ(status(client.Post("/v1/completions", "a=b", "application/x-www-form-urlencoded")),
            415);
  EXPECT_EQ(status(client.Options("/v1/completions")), 405);
  EXPECT_EQ(
      status(client.Post("/tokenize", R"({"prompt": "x"})", "Application/JSON ; charset=utf-8")),
      200);
  EXPECT_EQ(status(client.Head("/health")), 200);
  for (const httplib::Result& result : {client.Get("/nothing"), client.Get("/v1/completions")}) {
    ASSERT_TRUE(result);
    EXPECT_TRUE(Json::parse(result->body)["error"]["message"].is_string());
  }
}

TEST_F(Errors, BodiesThatAreTooLarge) {
  server::ServerOptions options = served_options();
  options.http.body_bytes = 1000;
  const ServedModel small(options);
  const httplib::Result declared =
      small.post("/v1/completions", R"({"prompt": ")" + std::string(200000, 'x') + "\"}");
  ASSERT_TRUE(declared);
  EXPECT_EQ(declared->status, 413);
  auto client = small.client();
  int64_t given = 0;
  const httplib::Result chunked = client.Post(
      "/v1/completions",
      [&](size_t, httplib::DataSink& sink) {
        const std::string part(10000, ' ');
        given += std::ssize(part);
        if (given > 300000) {
          sink.done();
          return true;
        }
        return sink.write(part.data(), part.size());
      },
      "application/json");
  if (chunked) {
    EXPECT_EQ(chunked->status, 413);
  }
  EXPECT_EQ(small
                .get("/v1/completions",
                     R"({"prompt": "x", "max_tokens": 1})")["usage"]["completion_tokens"]
                .as_integer(),
            1);
}

TEST_F(Errors, Keys) {
  server::ServerOptions options = served_options();
  options.service.keys = server::ApiKeys({"first-key", "second"});
  const ServedModel locked(options);
  const std::string body = R"({"prompt": "x", "max_tokens": 1})";
  const auto status = [&](const httplib::Headers& headers) {
    const httplib::Result result = locked.post("/v1/completions", body, headers);
    return result ? result->status : -1;
  };
  EXPECT_EQ(status({}), 401);
  EXPECT_EQ(status({{"Authorization", "Bearer second"}}), 200);
  EXPECT_EQ(status({{"Authorization", "bearer first-key"}}), 200);
  for (const char* wrong : {"Bearer ", "Bearer secon", "Bearer secondx", "second", "Basic second"})
    EXPECT_EQ(status({{"Authorization", wrong}}), 401) << wrong;
  auto client = locked.client();
  EXPECT_EQ(client.Get("/v1/models")->status, 401);
  EXPECT_EQ(client.Get("/metrics")->status, 401);
  EXPECT_EQ(client.Get("/health")->status, 200);
}

TEST_F(Errors, OtherOriginsOnlyWhereAllowed) {
  EXPECT_FALSE(served_->client().Get("/v1/models")->has_header("Access-Control-Allow-Origin"));
  server::ServerOptions options = served_options();
  options.service.cors_origin = "https://example.com";
  options.service.keys = server::ApiKeys({"k"});
  const ServedModel open(options);
  auto client = open.client();
  const httplib::Result asked = client.Options("/v1/chat/completions");
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->status, 204);
  EXPECT_EQ(asked->get_header_value("Access-Control-Allow-Origin"), "https://example.com");
  EXPECT_EQ(client.Get("/v1/models")->get_header_value("Access-Control-Allow-Origin"),
            "https://example.com");
}

TEST_F(Errors, ThousandsDoNotTireTheServer) {
  auto client = served_->client();
  client.set_keep_alive(true);
  const std::string bodies[] = {"{", R"({"prompt": 3})", R"({"prompt": "x", "n": 0})",
                                R"({"prompt": "x", "temperature": []})", "\xff"};
  for (int i = 0; i < 2000; ++i) {
    const httplib::Result result =
        client.Post("/v1/completions", bodies[i % 5], "application/json");
    ASSERT_TRUE(result);
    ASSERT_EQ(result->status, 400);
  }
  EXPECT_EQ(served_->get("/v1/completions", R"({"prompt": "x", "max_tokens": 3})")["choices"]
                .as_array()
                .size(),
            1u);
  EXPECT_EQ(served_->server->counts().running, 0);
}

}  // namespace
}  // namespace megatron::testing
