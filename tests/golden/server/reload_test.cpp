// Reloads weights while texts are generated.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "base/error.h"
#include "golden/server/support.h"
#include "text.h"

namespace megatron::testing {
namespace {

// Generating a text of this model's full length takes much longer than any test.
constexpr int64_t kPositions = 1 << 16;

std::shared_ptr<RandomModel> model_of(uint64_t seed) {
  auto m = std::make_shared<RandomModel>(gpt2_shape(1, 16, 2, 256, kPositions), DType::f32, 1);
  models::initialize(m->model, seed, m->runtime.stream());
  return m;
}

const httplib::Headers kKey = {{"Authorization", "Bearer key"}};

// A server with directories "1", "2", ..., named by the seeds of their weights.
class Reload : public ::testing::Test {
 protected:
  void start(int64_t memory = 0) {
    server::ServerOptions options = served_options(kPositions);
    options.engine.cache_bytes = 1 << 24;
    options.service.keys = server::ApiKeys({"key"});
    options.memory = memory;
    options.load_weights = [this](const std::optional<std::string>& directory) {
      if (while_loading_) while_loading_();
      const std::string seed = directory.value_or("7");
      MG_CHECK(seed.size() == 1, "'{}' is not there", seed);
      auto m = model_of(std::stoull(seed));
      loaded_.push_back(m);
      return server::ServedWeights{{m, &m->runtime}, {m, &m->model}};
    };
    served_ = std::make_unique<ServedModel>(options);
  }
  httplib::Result reload(const std::string& body, const httplib::Headers& headers = kKey) const {
    return served_->post("/admin/reload", body, headers);
  }
  // The text that the server returns for a model with these weights and seed 5.
  static std::string own(uint64_t weights, int64_t tokens) {
    const auto m = model_of(weights);
    const inference::Request request{
        .prompt = {'x'}, .max_tokens = tokens, .sampling = {.seed = 5}};
    const auto g = inference::generate(m->model, m->runtime, {&request, 1}, {.vocabulary = 256})[0];
    std::string text;
    tokenizers::DecodeStream stream(m_text().tokenizer());
    for (const auto& token : g.tokens) text += stream.push(token.draw.token);
    return text + stream.finish();
  }
  static const server::TextModel& m_text() {
    static const server::TextModel text = served_text_model("", kPositions);
    return text;
  }
  Json complete(int64_t tokens, const std::string& prompt = "x") const {
    const httplib::Result result = served_->post(
        "/v1/completions",
        fmt::format(R"({{"prompt": "{}", "max_tokens": {}, "seed": 5, "ignore_eos": true}})",
                    prompt, tokens),
        kKey);
    if (!result || result->status != 200) throw Error(result ? result->body : "no answer");
    return Json::parse(result->body);
  }
  std::string text(int64_t tokens) const {
    return complete(tokens)["choices"].as_array()[0]["text"].as_string();
  }

  std::function<void()> while_loading_;
  std::vector<std::weak_ptr<RandomModel>> loaded_;
  std::unique_ptr<ServedModel> served_;
};

TEST_F(Reload, TextsEndOnTheWeightsThatTheyBeganWith) {
  start();
  std::string streamed;
  std::atomic<bool> leaves = false, answered = true;
  std::atomic<size_t> bytes = 0;
  std::thread reader([&] {
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/completions";
    request.headers = kKey;
    request.set_header("Content-Type", "application/json");
    request.body =
        R"({"prompt": "x", "max_tokens": 60000, "seed": 5, "ignore_eos": true, "stream": true})";
    std::string events;
    request.content_receiver = [&](const char* data, size_t size, size_t, size_t) {
      events.append(data, size);
      for (size_t end; (end = events.find("\n\n")) != events.npos; events.erase(0, end + 2)) {
        const Json event = Json::parse(events.substr(6, end - 6));
        if (event.contains("error")) return false;
        streamed += event["choices"].as_array()[0]["text"].as_string();
      }
      bytes = streamed.size();
      return !leaves;
    };
    httplib::Client client = served_->client();
    client.send(request);
    answered = false;
  });
  const auto streams_beyond = [&](size_t size) {
    while (bytes <= size && answered) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return answered.load();
  };
  EXPECT_TRUE(streams_beyond(0));
  EXPECT_EQ(text(30), own(7, 30));
  const httplib::Result done = reload(R"({"load": "8"})");
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, 200) << done->body;
  const auto generated = static_cast<size_t>(served_->server->counts().generated_tokens);
  EXPECT_EQ(text(30), own(8, 30));
  EXPECT_EQ(served_->server->counts().running, 1);
  EXPECT_TRUE(streams_beyond(4 * generated));  // characters have at most four bytes
  leaves = true;
  reader.join();
  const std::string expected = own(7, std::ssize(streamed));
  ASSERT_GE(expected.size(), streamed.size());
  EXPECT_EQ(expected.substr(0, streamed.size()), streamed);
  EXPECT_NE(own(8, std::ssize(streamed)).substr(0, streamed.size()), streamed);
  EXPECT_GE(served_->server->counts().generated_tokens, static_cast<int64_t>(generated) + 30);
}

TEST_F(Reload, SharesNothingOfTheEarlierWeightsAndLetsThemGo) {
  start();
  const std::string prompt(70, 'p');
  const auto cached = [&] {
    return complete(2, prompt)["usage"]["prompt_tokens_details"]["cached_tokens"].as_integer();
  };
  for (const char* weights : {"8", "9", "8"}) {
    EXPECT_EQ(cached(), 0);
    EXPECT_EQ(cached(), 64);
    ASSERT_EQ(reload(fmt::format(R"({{"load": "{}"}})", weights))->status, 200);
  }
  EXPECT_EQ(cached(), 0);
  ASSERT_EQ(loaded_.size(), 3u);
  const int64_t cache = served_->server->counts().cache_bytes;
  EXPECT_GT(cache, 0);
  EXPECT_LE(cache, 1 << 24);
  EXPECT_TRUE(loaded_[0].expired());
  EXPECT_TRUE(loaded_[1].expired());
  EXPECT_FALSE(loaded_[2].expired());
  ASSERT_EQ(reload("{}")->status, 200);  // the directory that is being served
  EXPECT_EQ(text(20), own(7, 20));
  EXPECT_EQ(served_->server->counts().cached_tokens, 3 * 64);  // with replaced weights too
}

TEST_F(Reload, WhatFailsChangesNothing) {
  start();
  const auto refused = [&](const std::string& body, int status, const std::string& part) {
    const httplib::Result result = reload(body);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->status, status) << body;
    EXPECT_TRUE(has(result->body, part)) << result->body;
  };
  refused(R"({"load": "nowhere"})", 400, "'nowhere' is not there");
  refused(R"({"load": "a\u0000b"})", 400, "load contains a zero byte");
  refused(R"({"load": ""})", 400, "load is empty");
  refused(R"({"load": 3})", 400, "load is 3");
  refused("[", 400, "");
  EXPECT_EQ(reload("{}", {})->status, 401);
  EXPECT_EQ(text(20), own(7, 20));
  start(1 << 24);
  refused(R"({"load": "8"})", 503, "more than the 16777216 bytes");
  EXPECT_EQ(text(20), own(7, 20));
  EXPECT_EQ(loaded_.size(), 0u);
}

TEST_F(Reload, IsRefusedWhileAnotherIsUnderWay) {
  start();
  int loads = 0;
  while_loading_ = [&] {
    ++loads;
    const httplib::Result second = reload(R"({"load": "9"})");
    ASSERT_TRUE(second);
    EXPECT_EQ(second->status, 409) << second->body;
    EXPECT_EQ(Json::parse(second->body)["error"]["code"], Json("reload_under_way"));
    EXPECT_EQ(text(20), own(7, 20));
  };
  ASSERT_EQ(reload(R"({"load": "8"})")->status, 200);
  EXPECT_EQ(loads, 1);
  EXPECT_EQ(text(20), own(8, 20));
  while_loading_ = nullptr;
  ASSERT_EQ(reload(R"({"load": "9"})")->status, 200);  // no reload is in progress any more
  EXPECT_EQ(text(20), own(9, 20));
}

TEST_F(Reload, NeedsKeysAndADirectory) {
  const ServedModel without_keys;
  EXPECT_EQ(without_keys.post("/admin/reload", "{}")->status, 403);
  server::ServerOptions options = served_options();
  options.service.keys = server::ApiKeys({"key"});
  const ServedModel fixed(options);
  EXPECT_EQ(fixed.post("/admin/reload", "{}", kKey)->status, 404);
}

}  // namespace
}  // namespace megatron::testing
