// Clients that disconnect, full queues, deadlines, slow clients, and shutdown of the server.
#include <sys/socket.h>

#include <chrono>
#include <thread>

#include "golden/server/support.h"

namespace megatron::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Generating a text of this model's full length takes much longer than any test.
constexpr int64_t kManyPositions = 1 << 16;
const std::string kLong = R"({"prompt": "x", "ignore_eos": true, "max_tokens": 60000, )";

// Waits for a condition that must hold soon; the limit only catches hangs.
template <class F>
bool comes(F&& f) {
  const auto limit = steady_clock::now() + std::chrono::seconds(30);
  while (!f()) {
    if (steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

server::ServerOptions long_options() {
  server::ServerOptions options = served_options(kManyPositions);
  options.engine.max_requests = 1;
  options.max_waiting = 1;
  return options;
}

// A connection whose bytes a test writes itself.
class RawClient {
 public:
  explicit RawClient(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { leave(); }
  void leave() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }
  bool connected() const { return connected_; }
  void write(const std::string& text) const {
    EXPECT_EQ(send(socket_, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  }
  // Ignores errors, since the server may have closed the connection.
  void try_write(const std::string& text) const {
    send(socket_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void post(const std::string& path, const std::string& body) const {
    write("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" +
          "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  // Reads until the connection ends.
  std::string read_all() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = recv(socket_, buffer, sizeof buffer, 0)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    return text;
  }
  std::string read_some() const {
    char buffer[4096];
    const ssize_t n = recv(socket_, buffer, sizeof buffer, 0);
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
  }

 private:
  int socket_;
  bool connected_ = false;
};

class Lifecycle : public ::testing::Test {
 protected:
  static bool runs(const ServedModel& served, int64_t requests) {
    return comes([&] {
      const server::EngineCounts counts = served.server->counts();
      return counts.running + counts.waiting == requests;
    });
  }
};

TEST_F(Lifecycle, AClientThatLeavesFreesItsPlace) {
  const ServedModel served(long_options());
  for (const char* stream : {"false", "true"}) {
    RawClient client(served.server->port());
    client.post("/v1/completions", kLong + R"("stream": )" + stream + "}");
    ASSERT_TRUE(runs(served, 1)) << stream;
    client.leave();
    EXPECT_TRUE(runs(served, 0)) << stream;
  }
  EXPECT_EQ(served.get("/v1/completions", R"({"prompt": "x", "max_tokens": 2})")["choices"]
                .as_array()
                .size(),
            1u);
}

TEST_F(Lifecycle, AStopStringFreesThePlace) {
  const ServedModel served(long_options());
  std::string stops;
  for (int c = 1; c < 16; ++c) stops += fmt::format("{}\"{}\"", c == 1 ? "" : ",", char(64 + c));
  served.get("/v1/completions", kLong + R"("stop": [)" + stops + "]}");
  EXPECT_TRUE(runs(served, 0));
}

TEST_F(Lifecycle, TooManyAreRefused) {
  const ServedModel served(long_options());
  RawClient first(served.server->port()), second(served.server->port());
  first.post("/v1/completions", kLong + R"("stream": true})");
  ASSERT_TRUE(runs(served, 1));
  second.post("/v1/completions", kLong + R"("stream": true})");
  ASSERT_TRUE(runs(served, 2));
  const std::string body = R"({"prompt": "x", "max_tokens": 2})";
  const httplib::Result refused = served.post("/v1/completions", body);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
  EXPECT_EQ(Json::parse(refused->body)["error"]["type"], Json("rate_limit_error"));
  first.leave();
  second.leave();
  ASSERT_TRUE(runs(served, 0));
  EXPECT_EQ(served.post("/v1/completions", body)->status, 200);
}

// A request asks for the maximum number of texts from a server with slots for two in all: the texts
// wait for each other.
TEST_F(Lifecycle, ARequestMayHaveMoreTextsThanThereArePlaces) {
  const ServedModel served(long_options());
  for (const char* many : {R"("n": 128)", R"("best_of": 128)"}) {
    const httplib::Result result = served.post(
        "/v1/completions",
        std::string(R"({"prompt": "x", "ignore_eos": true, "max_tokens": 2, )") + many + "}");
    ASSERT_TRUE(result);
    EXPECT_EQ(result->status, 200) << result->body;
  }
  EXPECT_EQ(served.server->counts().generated_tokens, 2 * 128 * 2);
}

TEST_F(Lifecycle, Deadlines) {
  server::ServerOptions options = long_options();
  options.request_timeout = 0.05;
  const ServedModel served(options);
  const httplib::Result late = served.post("/v1/completions", kLong + R"("n": 1})");
  ASSERT_TRUE(late);
  EXPECT_EQ(late->status, 504);
  const httplib::Result stream = served.post("/v1/completions", kLong + R"("stream": true})");
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->status, 200);
  const size_t last = stream->body.rfind("data: ");
  EXPECT_EQ(Json::parse(stream->body.substr(last + 6))["error"]["code"], Json("deadline_exceeded"));
  EXPECT_TRUE(runs(served, 0));
}

TEST_F(Lifecycle, DrainLetsRunningRequestsFinish) {
  ServedModel served(long_options());
  RawClient client(served.server->port());
  const std::string port = std::to_string(served.server->port());
  client.post("/v1/completions",
              R"({"prompt": "x", "ignore_eos": true, "max_tokens": 2000, "stream": true})");
  ASSERT_TRUE(runs(served, 1));
  RawClient other(served.server->port());  // connected before the drain
  std::thread drains([&] { EXPECT_TRUE(served.server->drain(60)); });
  ASSERT_TRUE(comes([&] {
    RawClient asks(served.server->port());
    if (!asks.connected()) return true;
    asks.write("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
    return asks.read_all().starts_with("HTTP/1.1 503");
  }));
  const std::string text = client.read_all();
  drains.join();
  EXPECT_NE(text.find("data: [DONE]\n\n"), std::string::npos);
  EXPECT_FALSE(RawClient(std::stoi(port)).connected());
}

TEST_F(Lifecycle, DrainStopsWhatTakesTooLong) {
  ServedModel served(long_options());
  RawClient client(served.server->port());
  client.post("/v1/completions", kLong + R"("stream": true})");
  ASSERT_TRUE(runs(served, 1));
  EXPECT_FALSE(served.server->drain(0.01));
  EXPECT_NE(client.read_all().find(R"("code": "draining")"), std::string::npos);
}

// One client stops sending its body, and another does not read its answer.
TEST_F(Lifecycle, DrainDoesNotWaitForSlowClients) {
  server::ServerOptions options = served_options();
  options.http.body_seconds = options.http.write_seconds = 1e6;
  ServedModel served(options);
  RawClient slow(served.server->port()), deaf(served.server->port());
  slow.write(
      "POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
      "Content-Length: 9\r\n\r\n");
  EXPECT_TRUE(slow.read_some().starts_with("HTTP/1.1 100"));
  std::string requests;
  for (int i = 0; i < 2000; ++i) requests += "GET / HTTP/1.1\r\n\r\n";
  deaf.write(requests);  // the answers exceed a socket's buffer
  EXPECT_TRUE(deaf.read_some().starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(served.server->drain(1));
}

TEST_F(Lifecycle, SlowHeadersAreNotWaitedFor) {
  server::ServerOptions options = served_options();
  options.http.header_seconds = 0.1;
  options.http.body_seconds = 0.1;
  options.http.idle_seconds = 0.1;
  const ServedModel served(options);
  RawClient slow(served.server->port()), body(served.server->port()), idle(served.server->port());
  slow.write("GET /v1/models HTTP/1.1\r\nHost: x\r\n");
  body.write(
      "POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{");
  EXPECT_TRUE(slow.read_all().starts_with("HTTP/1.1 408"));
  EXPECT_TRUE(body.read_all().starts_with("HTTP/1.1 408"));
  EXPECT_EQ(idle.read_all(), "");
  RawClient many(served.server->port());
  many.write("GET /v1/models HTTP/1.1\r\n");
  std::string header;
  for (int i = 0; i < 5000; ++i) header += "X-Header-" + std::to_string(i) + ": y\r\n";
  many.write(header + "\r\n");
  EXPECT_TRUE(many.read_all().starts_with("HTTP/1.1 431"));
}

TEST_F(Lifecycle, ConnectionsBeyondTheLimitAreRefused) {
  server::ServerOptions options = served_options();
  options.http.connections = 2;
  const ServedModel served(options);
  RawClient first(served.server->port()), second(served.server->port());
  for (const RawClient* client : {&first, &second}) {
    client->write("GET /health HTTP/1.1\r\n\r\n");
    EXPECT_TRUE(client->read_some().starts_with("HTTP/1.1 200"));
  }
  const RawClient third(served.server->port());
  const std::string refused = third.read_all();
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503")) << refused;
  EXPECT_NE(refused.find(R"("code": "too_many_connections")"), refused.npos) << refused;
  EXPECT_NE(refused.find("Retry-After: 1"), refused.npos) << refused;
  first.leave();
  EXPECT_TRUE(comes([&] {
    RawClient next(served.server->port());
    next.write("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
    return next.read_all().starts_with("HTTP/1.1 200");
  }));
}

// More connections than the server allows, whose clients send part of a request, nothing, or too
// much, and then wait. Others are refused at once, and health checks still succeed.
TEST_F(Lifecycle, HalfOpenConnectionsHoldUpNobody) {
  server::ServerOptions options = served_options();
  options.http.connections = 20;
  const ServedModel served(options);
  std::vector<std::unique_ptr<RawClient>> clients;
  const std::string parts[] = {"POST /v1/completions HTTP/1.1\r\nContent-Le", "",
                               "GET /" + std::string(20000, 'x')};
  const auto begin = steady_clock::now();
  for (size_t i = 0; i < 300; ++i) {
    clients.push_back(std::make_unique<RawClient>(served.server->port()));
    clients.back()->try_write(parts[i % std::size(parts)]);
  }
  for (const auto& [path, status] : {std::pair{"/health", "200"}, {"/v1/models", "503"}}) {
    RawClient asks(served.server->port());
    asks.write(std::string("GET ") + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    const std::string answer = asks.read_all();
    EXPECT_TRUE(answer.starts_with(std::string("HTTP/1.1 ") + status)) << path << answer;
  }
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(4));  // headers may take 10 s
  clients.clear();
  EXPECT_TRUE(comes([&] {
    const httplib::Result models = served.client().Get("/v1/models");
    return models && models->status == 200;
  }));
}

// A body that arrives byte by byte, and an answer that is not read.
TEST_F(Lifecycle, SlowClientsLoseTheirPlace) {
  server::ServerOptions options = served_options();
  options.http.connections = 2;
  options.http.body_seconds = options.http.write_seconds = 0.2;
  const ServedModel served(options);
  RawClient slow(served.server->port()), deaf(served.server->port());
  std::string requests;
  for (int i = 0; i < 2000; ++i) requests += "GET / HTTP/1.1\r\n\r\n";
  deaf.write(requests);  // the answers exceed a socket's buffer
  slow.write(
      "POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n");
  for (int i = 0; i < 30; ++i) {
    slow.try_write(" ");
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_TRUE(slow.read_all().starts_with("HTTP/1.1 408"));
  EXPECT_TRUE(comes([&] {  // both slots are free
    httplib::Client one = served.client(), other = served.client();
    one.set_keep_alive(true);
    const httplib::Result first = one.Get("/v1/models"), second = other.Get("/v1/models");
    return first && second && first->status == 200 && second->status == 200;
  }));
}

TEST_F(Lifecycle, WhatIsNoHttpIsRefused) {
  const ServedModel served;
  for (const std::string& text :
       {std::string("nonsense\r\n\r\n"), std::string("GET /health\r\n\r\n"),
        std::string("POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\n\r\n"),
        std::string("POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"),
        std::string("POST /tokenize HTTP/1.1\r\nContent-Length: -5\r\n\r\n"),
        std::string("POST /tokenize HTTP/1.1\r\nContent-Length: 2x\r\n\r\n{}"),
        std::string("POST /tokenize HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
        std::string("POST /tokenize HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n{}"),
        std::string("POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2"
                    "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        std::string("POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\n"
                    "Transfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    RawClient client(served.server->port());
    client.write(text);
    EXPECT_TRUE(client.read_all().starts_with("HTTP/1.1 4")) << text;
  }
  EXPECT_EQ(served.client().Get("/health")->status, 200);
}

TEST_F(Lifecycle, TheBodyOfAGetIsNotTheNextRequest) {
  const ServedModel served;
  const std::string inner = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n";
  RawClient client(served.server->port());
  client.write("GET /health HTTP/1.1\r\nContent-Length: " + std::to_string(inner.size()) +
               "\r\n\r\n" + inner);
  const std::string answer = client.read_all();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
  EXPECT_NE(answer.find("Connection: close"), answer.npos) << answer;
  EXPECT_EQ(answer.find("HTTP/1.1", 1), answer.npos) << answer;
}

// The weights are NaN: the request fails, and the server continues.
TEST_F(Lifecycle, AStepThatFails) {
  ServedModel served;
  for (parallel::ParameterSpec* parameter : served.model.model.parameters()) {
    Tensor& value = parameter->parameter.value;
    const std::vector<double> bad(to_doubles(value).size(), NAN);
    copy_from(value, std::span<const double>(bad));
  }
  for (int i = 0; i < 2; ++i) {
    const httplib::Result result = served.post("/v1/completions", R"({"prompt": "x"})");
    ASSERT_TRUE(result);
    EXPECT_EQ(result->status, 500);
    EXPECT_EQ(result->body.find("src/"), std::string::npos) << result->body;
  }
  EXPECT_TRUE(runs(served, 0));
}

}  // namespace
}  // namespace megatron::testing
