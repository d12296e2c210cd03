// Bad requests: the answer names the field, and the server continues.
#include "golden/server/support.h"

namespace megatron::testing {
namespace {

// A request, or a part of one, and the field that the error must name.
struct Refusal {
  std::string body, param;
  int status = 400;
};

class Errors : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = new ServedModel; }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }
  static ServedModel* served_;

  // Sends each part between a common begin and end, and expects the given status and field.
  static void refused(const std::string& path, const std::string& begin,
                      const std::vector<Refusal>& refusals, const std::string& end) {
    httplib::Client client = served_->client();
    for (const auto& [part, param, status] : refusals) {
      const std::string body = begin + part + end;
      const httplib::Result result =
          path == "/api" ? client.Put(path, body, "application/json") : served_->post(path, body);
      ASSERT_TRUE(result) << body;
      EXPECT_EQ(result->status, status) << body << "\n" << result->body;
      EXPECT_EQ(result->get_header_value("Content-Type"), "application/json");
      const Json error = Json::parse(result->body)["error"];
      EXPECT_FALSE(error["message"].as_string().empty());
      EXPECT_EQ(error["param"], Json(param)) << body << "\n" << result->body;
    }
  }
};
ServedModel* Errors::served_ = nullptr;

TEST_F(Errors, FieldsOfCompletions) {
  const std::string path = "/v1/completions", x200(200, 'x');
  refused(
      path, R"({"prompt": "x", )",
      {{R"("model": "other")", "model", 404},
       {R"("model": 3)", "model"},
       {R"("temperature": 2.5)", "temperature"},
       {R"("temperature": "hot")", "temperature"},
       {R"("temperature": -0.1)", "temperature"},
       {R"("top_p": 0)", "top_p"},
       {R"("top_p": 1.01)", "top_p"},
       {R"("top_k": 1.5)", "top_k"},
       {R"("top_k": -2)", "top_k"},
       {R"("min_p": 2)", "min_p"},
       {R"("repetition_penalty": 0)", "repetition_penalty"},
       {R"("presence_penalty": 3)", "presence_penalty"},
       {R"("frequency_penalty": -2.1)", "frequency_penalty"},
       {R"("logit_bias": {"x": 1})", "logit_bias"},
       {R"("logit_bias": {"256": 1})", "logit_bias"},
       {R"("logit_bias": {"1": 101})", "logit_bias"},
       {R"("logit_bias": [1])", "logit_bias"},
       {R"("seed": 1.5)", "seed"},
       {R"("max_tokens": -1)", "max_tokens"},
       {R"("max_tokens": 0)", "max_tokens"},
       {R"("max_tokens": 1000)", "prompt"},
       {R"("max_tokens": 1e30)", "max_tokens"},
       {R"("min_tokens": 20, "max_tokens": 10)", "min_tokens"},
       {R"("n": 0)", "n"},
       {R"("n": 129)", "n"},
       {R"("best_of": 1, "n": 2)", "best_of"},
       {R"("best_of": 3, "stream": true)", "best_of"},
       {R"("logprobs": 21)", "logprobs"},
       {R"("logprobs": true)", "logprobs"},
       {R"("echo": 1)", "echo"},
       {R"("stop": "")", "stop"},
       {R"("stop": [1])", "stop"},
       {R"("stop": {"a": 1})", "stop"},
       {R"("stop": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"])", "stop"},
       {R"("stop_token_ids": [256])", "stop_token_ids"},
       {R"("stop_token_ids": 1)", "stop_token_ids"},
       {R"("stream": "yes")", "stream"},
       {R"("stream_options": {"include_usage": true})", "stream_options"},
       {R"("stream": true, "stream_options": {"include_usage": 1})",
        "stream_options.include_usage"},
       {R"("suffix": "end")", "suffix"},
       {R"("prompt_logprobs": 21)", "prompt_logprobs"},
       {R"("prompt_logprobs": -1)", "prompt_logprobs"},
       {R"("prompt_logprobs": true)", "prompt_logprobs"},
       {R"("prompt_logprobs": 1, "stream": true)", "prompt_logprobs"},
       {R"("return_routed_experts": 1)", "return_routed_experts"},
       {R"("return_routed_experts": true)", "return_routed_experts"},
       {R"("guided_json": {"type": 3})", "guided_json"}},
      "}");
  refused(path, R"({"prompt": )",
          {{"3", "prompt"},
           {"[]", "prompt"},
           {"[[]]", "prompt"},
           {"[256]", "prompt"},
           {"[-1]", "prompt"},
           {R"([1, "a"])", "prompt"},
           {R"(["a", 1])", "prompt"},
           {"{}", "prompt"},
           {"null", "prompt"},
           {"[1.5]", "prompt"},
           {'"' + x200 + '"', "prompt"},
           {R"(["a", "b"], "n": 100)", "n"}},
          "}");
  const Json taken = served_->get(path, R"({"prompt": "x", "max_tokens": 1, "suffix": null,
      "user": "me", "metadata": {"a": "b"}, "no such field": 3})");
  EXPECT_EQ(taken["choices"].as_array().size(), 1u);
}

TEST_F(Errors, FieldsOfChats) {
  const std::string path = "/v1/chat/completions", x200(200, 'x');
  refused(path, R"({"messages": [)",
          {{"", "messages"},
           {"3", "messages[0]"},
           {R"({"content": "x"})", "messages[0].role"},
           {R"({"role": "boss", "content": "x"})", "messages[0].role"},
           {R"({"role": "user"})", "messages[0].content"},
           {R"({"role": "user", "content": 3})", "messages[0].content"},
           {R"({"role": "user", "content": "x"}, {"role": "user", "content": ["x"]})",
            "messages[1].content"},
           {R"({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})",
            "messages[0].content"},
           {R"({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]})",
            "messages[0].tool_calls"},
           {R"({"role": "assistant",
              "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]})",
            "messages[0].tool_calls"},
           {R"({"role": "user", "content": ")" + x200 + "\"}", "messages"}},
          "]}");
  refused(path, R"({"messages": [{"role": "user", "content": "x"}], )",
          {{R"("top_logprobs": 3)", "top_logprobs"},
           {R"("logprobs": 3)", "logprobs"},
           {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
           {R"("max_completion_tokens": "many")", "max_completion_tokens"},
           {R"("tools": [{"type": "function"}])", "tools"},
           {R"("tools": {})", "tools"},
           {R"("tool_choice": "maybe")", "tool_choice"},
           {R"("response_format": {"type": "yaml"})", "response_format.type"},
           {R"("response_format": 3)", "response_format"},
           {R"("chat_template": "{{ messages }}")", "chat_template"},
           {R"("chat_template_kwargs": {"messages": []})", "chat_template_kwargs"},
           {R"("continue_final_message": true, "add_generation_prompt": true)",
            "continue_final_message"},
           {R"("modalities": ["audio"])", "modalities"},
           {R"("functions": [{"name": "f"}])", "functions"}},
          "}");
  refused(path, "{", {{"", "messages"}}, "}");
}

// Unsupported fields that clients send are accepted if they change nothing; otherwise the error
// names the field.
TEST_F(Errors, ValuesThatChangeNothingAreTaken) {
  const std::string both = R"("max_tokens": 1, "length_penalty": 1.0, "typical_p": 1, "best_of": 1,
      "repetition_penalty": 1, "early_stopping": false, "use_beam_search": false, "min_p": 0,
      "top_k": -1, "presence_penalty": 0, "guided_json": null, "guided_regex": null,
      "guided_choice": null, "guided_grammar": null, "response_format": {"type": "text"},
      "logit_bias": {}, "skip_special_tokens": true, "include_stop_str_in_output": false,
      "bad_words": [], "suffix": "", "tools": [], "audio": null})";
  served_->get("/v1/completions", R"({"prompt": "x", )" + both);
  served_->get("/v1/chat/completions",
               R"({"messages": [{"role": "user", "content": "x"}], "functions": [],
      "function_call": "none", )" +
                   both);
  const std::vector<Refusal> unsupported = {
      {R"("length_penalty": 0.5)", "length_penalty"},
      {R"("length_penalty": 0)", "length_penalty"},
      {R"("typical_p": 0.9)", "typical_p"},
      {R"("early_stopping": true)", "early_stopping"},
      {R"("use_beam_search": 1)", "use_beam_search"},
      {R"("use_beam_search": true, "temperature": 0.7)", "temperature"},
      {R"("use_beam_search": true, "top_p": 0.9)", "top_p"},
      {R"("use_beam_search": true, "top_k": 3)", "top_k"},
      {R"("use_beam_search": true, "min_p": 0.1)", "min_p"},
      {R"("use_beam_search": true, "repetition_penalty": 1.1)", "repetition_penalty"},
      {R"("use_beam_search": true, "presence_penalty": 1)", "presence_penalty"},
      {R"("use_beam_search": true, "frequency_penalty": 1)", "frequency_penalty"},
      {R"("use_beam_search": true, "logit_bias": {"3": 1})", "logit_bias"},
      {R"("use_beam_search": true, "stop": "x")", "stop"},
      {R"("use_beam_search": true, "guided_regex": "a+")", "use_beam_search"},
      {R"("use_beam_search": true, "n": 3, "best_of": 2)", "best_of"},
      {R"("use_beam_search": true, "best_of": 129)", "best_of"},
      {R"("use_beam_search": true, "length_penalty": "long")", "length_penalty"},
      {R"("use_beam_search": true, "early_stopping": "always")", "early_stopping"},
      {R"("skip_special_tokens": false)", "skip_special_tokens"},
      {R"("include_stop_str_in_output": true)", "include_stop_str_in_output"},
      {R"("response_format": {"type": "yaml"})", "response_format.type"}};
  refused("/v1/completions", R"({"prompt": "x", )", unsupported, "}");
  refused("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "x"}], )",
          unsupported, "}");
  refused("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "x"}], )",
          {{R"("best_of": 2)", "best_of"}}, "}");
}

TEST_F(Errors, FieldsOfEmbeddings) {
  const std::string x200(200, 'x');
  refused("/v1/embeddings", "{",
          {{"", "input"},
           {R"("input": [])", "input"},
           {R"("input": [300])", "input"},
           {R"("input": "x", "encoding_format": "hex")", "encoding_format"},
           {R"("input": "x", "dimensions": 3)", "dimensions"},
           {R"("input": ")" + x200 + '"', "input"}},
          "}");
}

TEST_F(Errors, FieldsOfMegatronsEndpoint) {
  refused("/api", "{",
          {{"", "prompts"},
           {R"("prompts": [])", "prompts"},
           {R"("prompts": "x")", "prompts"},
           {R"("prompts": [""])", "prompts"},
           {R"("sentences": ["x"])", "sentences"}},
          "}");
  refused("/api", R"({"prompts": ["x"], )",
          {{R"("max_len": 3)", "max_len"},
           {R"("tokens_to_generate": -1)", "tokens_to_generate"},
           {R"("tokens_to_generate": 0)", "tokens_to_generate"},
           {R"("temperature": 0)", "temperature"},
           {R"("top_k": 2, "top_p": 0.5)", "top_p"},
           {R"("top_k": 1001)", "top_k"},
           {R"("random_seed": -1)", "random_seed"},
           {R"("logprobs": 1)", "logprobs"},
           {R"("beam_width": 0)", "beam_width"},
           {R"("beam_width": 4, "top_k": 2)", "top_k"},
           {R"("beam_width": 4, "top_p": 0.5)", "top_p"},
           {R"("beam_width": 4, "temperature": 2)", "temperature"},
           {R"("beam_width": 4, "logprobs": true)", "logprobs"},
           {R"("length_penalty": 2)", "length_penalty"}},
          "}");
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
  const httplib::Result long_path = client.Get("/" + std::string(9000, 'x'));
  EXPECT_EQ(status(long_path), 414);
  EXPECT_EQ(Json::parse(long_path->body)["error"]["code"], Json("address_too_long"));
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

TEST_F(Errors, ASlashAtTheEndOfAPathIsNothing) {
  auto client = served_->client();
  for (const char* path : {"/v1/models/", "/health/", "/metrics/", "/v1/models/tiny/"}) {
    const httplib::Result result = client.Get(path);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->status, 200) << path;
  }
  EXPECT_EQ(served_->get("/tokenize/", R"({"prompt": "x"})")["count"], Json(1));
  EXPECT_EQ(client.Get("/v1/completions/")->status, 405);
  EXPECT_EQ(client.Get("/health//")->status, 404);
  EXPECT_NE(client.Get("/metrics")->body.find(R"({endpoint="/health",status="200"})"),
            std::string::npos);
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
  for (const char* path : {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}) {
    const std::string adapter = R"({"lora_name": "one", "lora_path": "one"})";
    EXPECT_EQ(locked.post(path, adapter)->status, 401);
    // Known, but adapters are not enabled.
    const auto result = locked.post(path, adapter, {{"Authorization", "Bearer second"}});
    EXPECT_NE(result->body.find("--enable-lora"), std::string::npos) << result->body;
  }
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
  EXPECT_EQ(asked->get_header_value("Access-Control-Expose-Headers"), "X-Unenforced-Keywords");
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
