// An HTTP/1.1 server for one handler: connections, their limits, and whole or streamed replies.
// Based on cpp-httplib.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::server {

struct HttpLimits {
  int64_t body_bytes = 4 << 20;
  int64_t connections = 256;
  double header_seconds = 10;  // from a request's first byte to the end of its headers
  double body_seconds = 60;    // to read a body
  double write_seconds =
      30;                    // limit on the time during which a client accepts no data of an answer
  double idle_seconds = 30;  // limit between requests on a connection
};

struct HttpRequest {
  std::string method, path;  // without the query
  std::string body;
  std::function<std::string(const std::string& name)> header;  // "" if it is absent
  std::function<bool()> client_gone;                           // checks the socket
};

// Returns false if the client has disconnected.
using StreamWriter = std::function<bool(std::string_view)>;

struct HttpAnswer {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
  // Writes the body piece by piece, in place of `body`. Returns a note for the log; must not throw.
  std::function<std::string(const StreamWriter&)> stream = {};
  std::string note = {};  // log text for a complete answer
};

// Called by many threads at once.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called before the body is read. Returns the reply to a request that is refused. Must not throw.
  virtual std::optional<HttpAnswer> refuse(const HttpRequest& request) = 0;
  virtual HttpAnswer answer(const HttpRequest& request) = 0;  // must not throw
  // Returns the reply to input that could not be read as a request.
  virtual HttpAnswer unreadable(int status) = 0;
  // Returns the reply to a request on a connection beyond the limit. The request has no body, and
  // its method and path are "" if unknown. Must not throw.
  virtual HttpAnswer beyond_limit(const HttpRequest& request, int64_t connections) = 0;
  // Called after a reply has been written.
  virtual void done(const std::string& method, const std::string& path, int status, double seconds,
                    const std::string& note) = 0;
};

class HttpServer {
 public:
  // The handler must outlive it.
  HttpServer(const HttpLimits& limits, HttpHandler& handler);
  ~HttpServer();  // calls stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Starts to listen; port 0 takes a free port. Returns the port. Throws Error if the address is
  // not available.
  int start(const std::string& host, int port);
  // Stops accepting connections, closes idle ones and waits for replies in progress.
  void stop();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace megatron::server
