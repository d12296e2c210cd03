// `megatron bench serve` against a server that runs in this process.
#include "bench/serve/load.h"

#include "base/error.h"
#include "bench/serve/summary.h"
#include "free_port.h"
#include "golden/server/support.h"
#include "server/http/http_client.h"
#include "text.h"

namespace megatron::testing {
namespace {

bench::Load load_of(const ServedModel& served, int64_t requests, int64_t output) {
  return {
      .address = {fmt::format("http://127.0.0.1:{}", served.server->port()), ""},
      .model = "tiny",
      .lengths = std::vector<bench::RequestLengths>(static_cast<size_t>(requests), {20, output}),
      .due = bench::arrival_times(requests, {}, 1),
      .concurrency = 3,
      .vocabulary = 256};
}

TEST(Load, CountsWhatTheServerAnswers) {
  const ServedModel served;
  bench::Load load = load_of(served, 7, 5);
  const bench::ServedModelInfo model = bench::ask_model(load.address, 60);
  EXPECT_EQ(model.name, "tiny");
  EXPECT_EQ(model.context, kServedPositions);
  load.lengths[3] = {30, 9};
  const std::vector<bench::RequestTimes> times = bench::run_load(load);
  for (const bench::RequestTimes& r : times) {
    ASSERT_EQ(r.ending, bench::Ending::complete) << r.error;
    double before = r.sent;
    for (const double token : r.tokens) {
      EXPECT_GE(token, before);
      before = token;
    }
    EXPECT_GE(r.ended, before);
  }
  EXPECT_EQ(times[3].prompt_tokens, 30);
  EXPECT_EQ(times[3].output_tokens, 9);
  const bench::LoadSummary s = bench::summarize(times);
  EXPECT_EQ(s.complete, 7);
  EXPECT_EQ(s.prompt_tokens, 6 * 20 + 30);
  EXPECT_EQ(s.output_tokens, 6 * 5 + 9);
  EXPECT_EQ(s.cached_tokens, 0);
}

TEST(Load, SharedPrefixesAreFoundInTheCache) {
  server::ServerOptions options = served_options(256);
  options.engine.block_size = 32;
  const ServedModel served(options);
  bench::Load load = load_of(served, 4, 2);
  load.concurrency = 1;
  load.shared_prefix = 64;
  for (bench::RequestLengths& lengths : load.lengths) lengths.prompt = 80;
  const std::vector<bench::RequestTimes> times = bench::run_load(load);
  EXPECT_EQ(times[0].cached_tokens, 0);
  for (size_t i = 1; i < times.size(); ++i) EXPECT_EQ(times[i].cached_tokens, 64) << i;
}

TEST(Load, RequestsAreSentAtTheirTimes) {
  const ServedModel served;
  bench::Load load = load_of(served, 6, 1);
  load.due = bench::arrival_times(6, 200.0, 2);
  for (const bench::RequestTimes& r : bench::run_load(load)) {
    EXPECT_EQ(r.ending, bench::Ending::complete) << r.error;
    EXPECT_GE(r.sent, r.due);
  }
}

TEST(Load, RefusalsAndFailuresAreCounted) {
  server::ServerOptions options = served_options(1 << 16);
  options.engine.max_requests = 1;
  options.max_waiting = 0;
  const ServedModel served(options);
  bench::Load load = load_of(served, 3, 60'000);
  load.concurrency = 1;
  load.seconds = 0.1;
  std::vector<bench::RequestTimes> times = bench::run_load(load);
  EXPECT_EQ(times[0].ending, bench::Ending::unfinished);
  EXPECT_FALSE(times[1].started);
  while (served.server->counts().running > 0) std::this_thread::yield();

  load.lengths = {{10, 1}, {10, 70'000}, {10, 1}};  // the second prompt is too long
  load.seconds = 60;
  times = bench::run_load(load);
  EXPECT_EQ(times[0].ending, bench::Ending::complete);
  EXPECT_EQ(times[1].ending, bench::Ending::failed);
  EXPECT_TRUE(has(times[1].error, "status 400: this model supports at most")) << times[1].error;
  EXPECT_EQ(times[2].ending, bench::Ending::complete);

  server::HttpClient client(load.address.url, "", 60);
  std::thread first([&] {
    client.post("/v1/completions",
                R"({"prompt": "x", "ignore_eos": true, "max_tokens": 60000, "stream": true})",
                [](std::string_view) { return true; });
  });
  while (served.server->counts().running == 0) std::this_thread::yield();
  EXPECT_EQ(bench::summarize(bench::run_load(load)).refused, 2);  // and one is too long
  client.stop();
  first.join();
}

TEST(Load, OnlyServersAreMeasured) {
  for (const char* url :
       {"127.0.0.1:5000", "https://127.0.0.1", "http://", "http://a/b", "http://u@h"})
    EXPECT_THROW(server::HttpClient(url, "", 1), Error) << url;
  const auto failure = [](const std::string& url) {
    try {
      bench::ask_model({url, ""}, 1);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const char* host : {"127.0.0.1", "[::1]", "localhost"}) {
    const std::string url = fmt::format("http://{}:{}", host, free_port());
    const std::string error = failure(url);
    EXPECT_TRUE(has(error, "no answer from " + url + ": c")) << error;
    EXPECT_TRUE(has(error, std::string(host) == "[::1]" ? "connect" : "connection refused"))
        << error;  // a machine may have no IPv6
  }
  const std::string unknown = failure("http://no..host:5000");
  EXPECT_TRUE(has(unknown, "the host no..host was not found")) << unknown;
  server::ServerOptions options = served_options();
  const ServedModel served(options);
  bench::Load load = load_of(served, 1, 1);
  load.model = "another";
  EXPECT_TRUE(has(bench::run_load(load)[0].error, "status 404: there is no model"));
}

}  // namespace
}  // namespace megatron::testing
