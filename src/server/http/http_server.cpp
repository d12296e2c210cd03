#include "server/http/http_server.h"

#include <strings.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "server/http/connection.h"
#include "server/http/connection_threads.h"
#include "server/http/refused_connections.h"

namespace megatron::server {
namespace {

// httplib refuses sockets with numbers from FD_SETSIZE on.
constexpr int64_t kMaxConnections = 900;
constexpr size_t kLongestPath = 256;

// True if the length is given in a way that every proxy reads alike; otherwise one might take the
// rest of a body for a request.
bool gives_length_clearly(const httplib::Request& request) {
  const size_t lengths = request.get_header_value_count("Content-Length");
  const size_t encodings = request.get_header_value_count("Transfer-Encoding");
  if (encodings > 0)
    return lengths == 0 && encodings == 1 &&
           strcasecmp(request.get_header_value("Transfer-Encoding").c_str(), "chunked") == 0;
  const std::string length = request.get_header_value("Content-Length");
  return lengths == 0 ||
         (lengths == 1 && !length.empty() && length.find_first_not_of("0123456789") == length.npos);
}

}  // namespace

// Its connections are served by process_and_close_socket, as SSLServer of httplib does.
class HttpServer::Implementation final : public httplib::Server {
 public:
  Implementation(const HttpLimits& limits, HttpHandler& handler)
      : limits_(limits),
        handler_(handler),
        refused_([this](std::string_view bytes) { return refusal(bytes); }) {
    new_task_queue = [this] {
      return new ConnectionThreads(static_cast<size_t>(limits_.connections));
    };
    set_keep_alive_max_count(1'000'000);
    set_keep_alive_timeout(static_cast<time_t>(limits.idle_seconds));
    set_payload_max_length(static_cast<size_t>(limits.body_bytes));
    set_socket_options([this](socket_t socket) {
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      socket_ = socket;  // the last socket is the bound one
    });
    route();
  }

  int start(const std::string& host, int port) {
    const int bound = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
    MG_CHECK(bound > 0,
             "cannot listen on --host {} --port {}: the address is not this machine's, or another "
             "program uses the port; choose another",
             host, port);
    // httplib's backlog is 5 clients; if many connect at once, the others are reset.
    ::listen(socket_, kBacklog);
    thread_ = std::thread([this] {
      accepting_ = std::this_thread::get_id();
      listen_after_bind();
    });
    while (!is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return bound;
  }

  void stop_all() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    stop();
    thread_.join();
  }

 private:
  static constexpr int kBacklog = 1024;  // clients waiting to be accepted

  // State of the request that a thread answers.
  struct Exchange {
    Connection* connection = nullptr;
    double begin = 0;
    std::string note;
  };

  void route();
  HttpRequest request_of(const httplib::Request& request);
  void give(HttpAnswer answer, const httplib::Request& request, httplib::Response& response);
  HandlerResponse refuse(const httplib::Request& request, httplib::Response& response);
  HandlerResponse explain(const httplib::Request& request, httplib::Response& response);
  bool process_and_close_socket(socket_t socket) override;
  void serve(Connection& connection);
  std::string refusal(std::string_view bytes);
  template <class S, class F>
  static bool process(S& server, Connection& connection, bool& closed, const F& setup);

  Exchange& exchange() {
    const std::lock_guard lock(mutex_);
    return exchanges_[std::this_thread::get_id()];
  }

  const HttpLimits limits_;
  HttpHandler& handler_;
  socket_t socket_ = -1;
  std::thread thread_;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::map<std::thread::id, Exchange> exchanges_;
  std::thread::id accepting_;
  RefusedConnections refused_;
};

void HttpServer::Implementation::route() {
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    return refuse(request, response);
  });
  const auto answer = [this](const httplib::Request& request, httplib::Response& response) {
    HttpRequest given = request_of(request);
    given.body = request.body;
    give(handler_.answer(given), request, response);
  };
  constexpr const char* kAny = R"([\s\S]*)";
  Get(kAny, answer).Post(kAny, answer).Put(kAny, answer).Patch(kAny, answer);
  Delete(kAny, answer).Options(kAny, answer);
  set_error_handler(
      HandlerWithResponse([this](const httplib::Request& request, httplib::Response& response) {
        return explain(request, response);
      }));
  set_logger([this](const httplib::Request& request, const httplib::Response& response) {
    const Exchange& now = exchange();
    handler_.done(request.method, request.path, response.status, now_seconds() - now.begin,
                  now.note);
  });
}

HttpRequest HttpServer::Implementation::request_of(const httplib::Request& request) {
  const Connection* connection = exchange().connection;
  return {.method = request.method,
          .path = request.path,
          .body = {},
          .header = [&request](const std::string& name) { return request.get_header_value(name); },
          .client_gone = [connection] { return connection->peer_gone(); }};
}

void HttpServer::Implementation::give(HttpAnswer answer, const httplib::Request& request,
                                      httplib::Response& response) {
  response.status = answer.status;
  for (const auto& [name, value] : answer.headers) response.set_header(name, value);
  exchange().note = std::move(answer.note);
  if (!answer.stream || request.method == "HEAD") {
    response.set_content(answer.body, answer.content_type);
    return;
  }
  response.set_chunked_content_provider(
      answer.content_type,
      [this, stream = std::move(answer.stream)](size_t, httplib::DataSink& sink) {
        exchange().note = stream([&](std::string_view text) {
          return text.empty() || sink.write(text.data(), text.size());
        });
        sink.done();
        return true;
      });
}

// Called before the body is read.
httplib::Server::HandlerResponse HttpServer::Implementation::refuse(const httplib::Request& request,
                                                                    httplib::Response& response) {
  std::optional<HttpAnswer> answer;
  const std::string length = request.get_header_value("Content-Length");
  const bool in_chunks = request.has_header("Transfer-Encoding");
  const bool reads =  // methods whose bodies httplib reads
      request.method == "POST" || request.method == "PUT" || request.method == "PATCH";
  const bool sends = reads || in_chunks || (!length.empty() && length != "0");
  if (request.path.size() > kLongestPath) {
    answer = handler_.unreadable(404);
  } else if (!gives_length_clearly(request)) {
    answer = handler_.unreadable(400);
  } else if (reads && length.empty() && !in_chunks) {
    answer = handler_.unreadable(411);
  } else if (length.size() > 18 ||
             (!length.empty() && std::atoll(length.c_str()) > limits_.body_bytes)) {
    answer = handler_.unreadable(413);
  } else {
    answer = handler_.refuse(request_of(request));
  }
  if (sends && (answer || !reads)) {  // the body remains unread
    exchange().connection->close_after_answer();
    response.set_header("Connection", "close");
  }
  if (!answer) return HandlerResponse::Unhandled;
  give(std::move(*answer), request, response);
  return HandlerResponse::Handled;
}

// Adds an error body where httplib itself refused the request.
httplib::Server::HandlerResponse HttpServer::Implementation::explain(
    const httplib::Request& request, httplib::Response& response) {
  if (!response.body.empty() || response.content_provider_) return HandlerResponse::Unhandled;
  Exchange& now = exchange();
  const int trouble = now.connection->trouble();
  now.connection->close_after_answer();
  give(handler_.unreadable(trouble != 0 ? trouble : response.status), request, response);
  response.set_header("Connection", "close");
  return HandlerResponse::Handled;
}

bool HttpServer::Implementation::process_and_close_socket(socket_t socket) {
  if (std::this_thread::get_id() == accepting_) {  // above the limit (ConnectionThreads)
    refused_.add(socket);
    return true;
  }
  Connection connection(socket, limits_, stopping_);
  exchange().connection = &connection;
  try {
    serve(connection);
  } catch (const std::exception& e) {
    log::error("a connection failed: {}", e.what());
  }
  const std::lock_guard lock(mutex_);
  exchanges_.erase(std::this_thread::get_id());
  return true;
}

void HttpServer::Implementation::serve(Connection& connection) {
  const auto setup = [&](httplib::Request& request) {
    connection.begin_body();
    request.headers.erase("Accept-Encoding");  // answers are not compressed
    request.headers.erase("Range");
    request.ranges.clear();
  };
  while (connection.wait_for_request()) {
    Exchange& now = exchange();
    now.begin = now_seconds();
    now.note.clear();
    bool closed = false;
    if (!process(*this, connection, closed, setup) || closed || connection.closes() || stopping_)
      return;
  }
}

// Reads only the first line, and only if it came in one piece.
std::string HttpServer::Implementation::refusal(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, bytes.find("\r\n"));
  const size_t space = line.find(' '), end = line.find_first_of(" ?", space + 1);
  HttpRequest request{.header = [](const std::string&) { return ""; },
                      .client_gone = [] { return false; }};
  if (end != line.npos && end > space) {
    request.method = line.substr(0, space);
    request.path = line.substr(space + 1, end - space - 1);
  }
  const HttpAnswer answer = handler_.beyond_limit(request, limits_.connections);
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n",
                                 answer.status, answer.status == 200 ? "OK" : "Service Unavailable",
                                 answer.content_type, answer.body.size());
  for (const auto& [name, value] : answer.headers) text += name + ": " + value + "\r\n";
  handler_.done(request.method, request.path, answer.status, 0, answer.note);
  return text + "Connection: close\r\n\r\n" + answer.body;
}

// The parameters differ between versions of httplib.
template <class S, class F>
bool HttpServer::Implementation::process(S& server, Connection& connection, bool& closed,
                                         const F& setup) {
  if constexpr (requires { server.process_request(connection, false, closed, setup); }) {
    return server.process_request(connection, false, closed, setup);
  } else {
    std::string remote, local;
    int remote_port = 0, local_port = 0;
    connection.get_remote_ip_and_port(remote, remote_port);
    connection.get_local_ip_and_port(local, local_port);
    return server.process_request(connection, remote, remote_port, local, local_port, false, closed,
                                  setup);
  }
}

HttpServer::HttpServer(const HttpLimits& limits, HttpHandler& handler) {
  MG_CHECK(limits.connections > 0 && limits.connections <= kMaxConnections,
           "--max-connections is {}; it must be from 1 to {}", limits.connections, kMaxConnections);
  implementation_ = std::make_unique<Implementation>(limits, handler);
}

HttpServer::~HttpServer() { stop(); }

int HttpServer::start(const std::string& host, int port) {
  return implementation_->start(host, port);
}

void HttpServer::stop() { implementation_->stop_all(); }

}  // namespace megatron::server
