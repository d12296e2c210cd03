// Several engines that share one model.
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "golden/server/support.h"
#include "text.h"

namespace megatron::testing {
namespace {

constexpr int64_t kReplicaPositions = 1 << 16;

// Two replicas, one of which keeps generating after a prompt of 70 times "a".
class Replicas : public ::testing::Test {
 protected:
  static server::ServerOptions options(int64_t replicas, int64_t requests, int64_t waiting) {
    server::ServerOptions options = served_options(kReplicaPositions);
    options.engine.max_requests = requests;
    options.engine.cache_bytes = 1 << 24;
    options.max_waiting = waiting;
    options.replicas = replicas;
    return options;
  }
  void start(int64_t requests = 4, int64_t waiting = 8) {
    served_ = std::make_unique<ServedModel>(options(2, requests, waiting));
    stream(std::string(70, 'a'));
    busy_ = running(0) == 1 ? 0 : 1;
  }
  void TearDown() override {
    ends_ = true;
    for (std::thread& thread : streams_) thread.join();
  }
  // Returns when the first token has arrived.
  void stream(const std::string& prompt) {
    auto begun = std::make_shared<std::promise<void>>();
    streams_.emplace_back([this, begun, prompt] {
      httplib::Request request;
      request.method = "POST";
      request.path = "/v1/completions";
      request.set_header("Content-Type", "application/json");
      request.body = fmt::format(
          R"({{"prompt": "{}", "max_tokens": 60000, "ignore_eos": true, "stream": true}})", prompt);
      bool first = true;
      request.content_receiver = [&](const char*, size_t, size_t, size_t) {
        if (std::exchange(first, false)) begun->set_value();
        return !ends_;
      };
      served_->client().send(request);
    });
    begun->get_future().get();
  }
  int64_t running(size_t replica) const {
    return served_->server->replica_counts()[replica].running;
  }
  server::EngineCounts counts(size_t replica) const {
    return served_->server->replica_counts()[replica];
  }
  static std::string body(const std::string& prompt) {
    return fmt::format(R"({{"prompt": "{}", "max_tokens": 4, "seed": 3, "n": 2}})", prompt);
  }

  std::atomic<bool> ends_ = false;
  size_t busy_ = 0;  // the replica that serves the first stream
  std::unique_ptr<ServedModel> served_;
  std::vector<std::thread> streams_;
};

TEST_F(Replicas, TakeWhatTheyHaveReadAndElseWhatTheOthersAreTooBusyFor) {
  start();
  const std::string a(70, 'a'), b(70, 'b');
  const size_t idle = 1 - busy_;
  EXPECT_EQ(counts(idle).prompt_tokens, 0);
  served_->get("/v1/completions", body(b));
  EXPECT_GE(counts(idle).prompt_tokens, 70);
  EXPECT_EQ(counts(busy_).prompt_tokens, 70);
  const int64_t cached = counts(idle).cached_tokens;
  const Json again = served_->get("/v1/completions", body(b));
  EXPECT_EQ(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_integer(), 64);
  EXPECT_EQ(counts(idle).cached_tokens, cached + 2 * 64);
  EXPECT_EQ(counts(busy_).cached_tokens, 0);
  served_->get("/v1/completions", body(a));
  EXPECT_EQ(counts(busy_).cached_tokens, 2 * 64);
  const httplib::Result metrics = served_->client().Get("/metrics");
  ASSERT_TRUE(metrics);
  for (const std::string& line :
       {fmt::format("megatron_requests_running{{replica=\"{}\"}} 1\n", busy_),
        fmt::format("megatron_requests_running{{replica=\"{}\"}} 0\n", idle),
        fmt::format("megatron_cached_prompt_tokens_total{{replica=\"{}\"}} 128\n", busy_)})
    EXPECT_TRUE(has(metrics->body, line)) << line << " is not in\n" << metrics->body;
}

TEST_F(Replicas, AnswerAsOneDoes) {
  start();
  const ServedModel one(options(1, 4, 8));
  std::vector<std::thread> clients;
  for (size_t c = 0; c < 3; ++c) {
    clients.emplace_back([&, c] {
      for (size_t i = c; i < 12; i += 3) {
        const std::string request = body(std::string(1 + 23 * i, i % 2 == 0 ? 'a' : 'c'));
        EXPECT_EQ(served_->get("/v1/completions", request)["choices"],
                  one.get("/v1/completions", request)["choices"]);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(counts(0).prompt_tokens, 0);
  EXPECT_GT(counts(1).prompt_tokens, 0);
}

TEST_F(Replicas, AFullOneLeavesRequestsToTheOthers) {
  start(1, 0);
  const std::string request =
      fmt::format(R"({{"prompt": "{}", "max_tokens": 4}})", std::string(70, 'a'));
  EXPECT_EQ(served_->post("/v1/completions", request)->status, 200);
  EXPECT_EQ(counts(1 - busy_).prompt_tokens, 70);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (running(1 - busy_) > 0 && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stream("d");
  EXPECT_EQ(served_->post("/v1/completions", request)->status, 429);
}

TEST_F(Replicas, AreAtLeastOne) {
  RandomModel m(gpt2_shape(1, 16, 2, 256, kServedPositions), DType::f32, 1);
  const server::TextModel text = served_text_model();
  server::ServerOptions none = served_options();
  none.replicas = 0;
  EXPECT_THROW(server::Server(text, borrowed(m), none), Error);
}

}  // namespace
}  // namespace megatron::testing
