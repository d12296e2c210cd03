// HTTP/1.1 for one handler: connections, their limits, and answers whole or streamed. cpp-httplib is
// behind it.
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
  double write_seconds = 30;   // that a client may take nothing of an answer
  double idle_seconds = 30;    // of a connection between requests
};

struct HttpRequest {
  std::string method, path;  // without the query
  std::string body;
  std::function<std::string(const std::string& name)> header;  // "" where there is none
  std::function<bool()> client_gone;                           // asks the socket
};

// False: the client is gone.
using StreamWriter = std::function<bool(std::string_view)>;

struct HttpAnswer {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
  // In place of the body: writes it piece by piece. Returns a note for the log; must not throw.
  std::function<std::string(const StreamWriter&)> stream = {};
  std::string note = {};  // for the log, of an answer that is whole
};

// Called by many threads at once.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Before the body is read: the answer to a request that is refused. Must not throw.
  virtual std::optional<HttpAnswer> refuse(const HttpRequest& request) = 0;
  virtual HttpAnswer answer(const HttpRequest& request) = 0;  // must not throw
  // The answer to what could not be read as a request.
  virtual HttpAnswer unreadable(int status) = 0;
  // The answer to a request on a connection beyond the limit. The request has no body, and its
  // method and path are "" if they are not known. Must not throw.
  virtual HttpAnswer beyond_limit(const HttpRequest& request, int64_t connections) = 0;
  // An answer was written.
  virtual void done(const std::string& method, const std::string& path, int status, double seconds,
                    const std::string& note) = 0;
};

class HttpServer {
 public:
  // The handler must outlive it.
  HttpServer(const HttpLimits& limits, HttpHandler& handler);
  ~HttpServer();  // as stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Listens from now on; port 0 takes a free one. Returns the port. Throws Error where the address
  // cannot be had.
  int start(const std::string& host, int port);
  // Accepts nothing more, closes idle connections and waits for the answers that are being given.
  void stop();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace megatron::server
