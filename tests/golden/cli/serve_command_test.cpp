// `megatron serve` from start to shutdown.
#include <gtest/gtest.h>
#include <httplib.h>

#include "base/json.h"
#include "golden/cli/served_run.h"

namespace megatron::testing {
namespace {

// An untrained model with 64 positions, made once for all tests.
class ServeCommand : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    place_ = new Workplace;
    make_served_run(*place_, "--num-layers 1 --seq-length 64", "run");
  }
  static void TearDownTestSuite() {
    delete place_;
    place_ = nullptr;
  }

  static int port_of(const Background& server) { return served_port(*place_, server); }
  static Words serve(const Words& flags) {
    return with(words("serve --load run --port 0 --threads 1"), flags);
  }

  static Workplace* place_;
};
Workplace* ServeCommand::place_ = nullptr;

TEST_F(ServeCommand, AnswersAsGenerateDoesUntilItIsEnded) {
  const Outcome generated = place_->run(
      words("generate --load run --threads 1 --prompt Hello --max-tokens 9 --temperature 0"));
  ASSERT_EQ(generated.code, 0) << generated.err;
  write_file(*place_ / "keys", "# of the test\nsecret-key\n");
  Background server = place_->start(serve({"--api-key-file", "keys"}));
  const int port = port_of(server);
  ASSERT_GT(port, 0) << server.wait().err;
  httplib::Client client("127.0.0.1", port);
  EXPECT_EQ(client.Get("/health")->status, 200);
  const std::string body =
      R"({"model": "run", "prompt": "Hello", "max_tokens": 9, "temperature": 0})";
  EXPECT_EQ(client.Post("/v1/completions", body, "application/json")->status, 401);
  client.set_bearer_token_auth("secret-key");
  const httplib::Result result = client.Post("/v1/completions", body, "application/json");
  ASSERT_EQ(result->status, 200) << result->body;
  const std::string text = Json::parse(result->body)["choices"].as_array()[0]["text"].as_string();
  EXPECT_EQ("Hello" + text + "\n", generated.out);
  httplib::Request odd;
  odd.method = "\x1b[2J\r";
  odd.path = "/";
  EXPECT_EQ(client.send(odd)->status, 400);
  server.kill(SIGTERM);
  const Outcome ended = server.wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  for (const char* part :
       {"serving run at", "POST /v1/completions 401", "API key required",
        "POST /v1/completions 200", "prompt tokens, 9 generated", "info - other 400", "SIGTERM"})
    EXPECT_NE(ended.err.find(part), std::string::npos) << part << " is not in\n" << ended.err;
  for (const char* part : {"Hello", "secret-key", "\x1b", "\r"})
    EXPECT_EQ(ended.err.find(part), std::string::npos) << ended.err;
}

TEST_F(ServeCommand, ReadsOtherWeights) {
  const std::string train =
      "train --hidden-size 16 --num-attention-heads 2 --seq-length 64 --micro-batch-size 1 "
      "--train-iters 1 --lr 1e-5 --mock-data --tokenizer-model t --seed 5 ";
  for (const char* flags : {"--num-layers 1 --save run2", "--num-layers 2 --save deep"}) {
    const Outcome r = place_->run(words(train + flags));
    ASSERT_EQ(r.code, 0) << r.err;
  }
  const Words prompt = words("--threads 1 --prompt Hello --max-tokens 9 --temperature 0");
  const Outcome first = place_->run(with(words("generate --load run"), prompt)),
                second = place_->run(with(words("generate --load run2"), prompt));
  ASSERT_NE(first.out, second.out);
  std::filesystem::copy(*place_ / "run2", *place_ / "words",
                        std::filesystem::copy_options::recursive);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(*place_ / "words"))
    if (entry.path().filename() == "tokenizer.json")
      write_file(entry.path().string(), read_file(entry.path().string()) + "\n");
  write_file(*place_ / "keys", "secret-key\n");
  Background server = place_->start(serve({"--api-key-file", "keys"}));
  const int port = port_of(server);
  ASSERT_GT(port, 0) << server.wait().err;
  httplib::Client client("127.0.0.1", port);
  client.set_bearer_token_auth("secret-key");
  const auto text = [&] {
    const httplib::Result result =
        client.Post("/v1/completions", R"({"prompt": "Hello", "max_tokens": 9, "temperature": 0})",
                    "application/json");
    if (!result || result->status != 200) throw Error("no answer");
    return "Hello" + Json::parse(result->body)["choices"].as_array()[0]["text"].as_string() + "\n";
  };
  for (const auto& [load, part] : {std::pair{"nowhere", "nowhere"},
                                   {"deep", "num-layers"},
                                   {"words", "the tokenizer files"},
                                   {"keys", "keys"}}) {
    const httplib::Result result =
        client.Post("/admin/reload", fmt::format(R"({{"load": "{}"}})", load), "application/json");
    ASSERT_TRUE(result);
    EXPECT_EQ(result->status, 400) << result->body;
    EXPECT_NE(result->body.find(part), std::string::npos) << result->body;
    EXPECT_EQ(text(), first.out);
  }
  EXPECT_EQ(client.Post("/admin/reload", R"({"load": "run2"})", "application/json")->status, 200);
  EXPECT_EQ(text(), second.out);
  EXPECT_EQ(client.Post("/admin/reload", "{}", "application/json")->status, 200);
  EXPECT_EQ(text(), first.out);
  server.kill(SIGTERM);
  EXPECT_EQ(server.wait().code, 0);
}

// The printed address works in a browser.
TEST_F(ServeCommand, ListensOnIPv6) {
  Background server = place_->start(serve({"--host", "::1"}));
  const int port = served_port(*place_, server, "[::1]");
  ASSERT_GT(port, 0) << server.wait().err;
  const httplib::Result health = httplib::Client("::1", port).Get("/health");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
  server.kill(SIGTERM);
  EXPECT_EQ(server.wait().code, 0);
}

// The running text would take much longer. A signal that arrives together with the first does not
// count as a second one.
TEST_F(ServeCommand, ASecondSignalEndsItAtOnce) {
  Outcome r = place_->run(
      words("train --hidden-size 16 --num-attention-heads 2 --micro-batch-size 1 --train-iters 1 "
            "--lr 1e-5 --mock-data --tokenizer-model t --num-layers 1 --seq-length 64 "
            "--max-position-embeddings 100000 --save long"));
  ASSERT_EQ(r.code, 0) << r.err;
  Background server =
      place_->start(words("serve --load long --port 0 --threads 1 --drain-timeout 1000"));
  const int port = port_of(server);
  ASSERT_GT(port, 0) << server.wait().err;
  const std::string said = place_->path() + ".err";
  const auto wait_for = [&](const std::string& part) {
    while (!server.ended() && read_file(said).find(part) == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  std::thread asks([&] {
    httplib::Client("127.0.0.1", port)
        .Post("/v1/completions",
              R"({"prompt": "x", "ignore_eos": true, "max_tokens": 99000, "stream": true})",
              "application/json");
  });
  httplib::Client client("127.0.0.1", port);
  for (std::string metrics; metrics.find("requests_running{replica=\"0\"} 1") == metrics.npos;)
    metrics = client.Get("/metrics")->body;
  server.kill(SIGINT);
  server.kill(SIGTERM);
  wait_for("SIGINT: no new requests");
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  EXPECT_FALSE(server.ended());
  // On a busy machine the server may take the next one for one that came with the first.
  while (!server.ended()) {
    server.kill(SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  r = server.wait();
  asks.join();
  EXPECT_EQ(r.code, 128 + SIGINT) << r.err;
}

TEST_F(ServeCommand, RefusesWhatMakesNoSense) {
  write_file(*place_ / "empty", "\n# none\n");
  write_file(*place_ / "bad.jinja", "{% if %}");
  for (const auto& [flags, part] :
       {std::pair<Words, std::string>{words("--port 70000"), "--port is 70000"},
        {words("--host 1.2.3.4"), "--host 1.2.3.4 --port 0"},
        {words("--max-waiting-requests -1"), "--max-waiting-requests is -1"},
        {words("--replicas 0"), "--replicas is 0"},
        {words("--request-timeout 0"), "--request-timeout is 0"},
        {words("--drain-timeout -1"), "--drain-timeout is -1"},
        {words("--max-connections 0"), "--max-connections is 0"},
        {words("--max-body-bytes 0"), "--max-body-bytes is 0"},
        {words("--api-key-file empty"), "contains no key"},
        {words("--api-key-file none"), "none"},
        {words("--chat-template bad.jinja"), "bad.jinja"},
        {words("--load nowhere"), "nowhere"}}) {
    const Outcome r = place_->run(serve(flags));
    EXPECT_EQ(r.code, 2) << flags[0] << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << part << " is not in\n" << r.err;
  }
  EXPECT_EQ(place_->run(words("serve")).code, 2);
  EXPECT_EQ(place_->run(words("help serve")).code, 0);
}

}  // namespace
}  // namespace megatron::testing
