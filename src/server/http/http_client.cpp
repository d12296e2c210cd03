#include "server/http/http_client.h"

#include <fcntl.h>
#include <httplib.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <system_error>

#include "base/error.h"

namespace megatron::server {
namespace {

constexpr size_t kLongestBody = 1 << 20;  // bytes of a reply that are kept

constexpr std::string_view kScheme = "http://";

void check_url(const std::string& url) {
  MG_CHECK(url.starts_with(kScheme) && url.size() > kScheme.size(),
           "the address {} does not begin with http:// and a host; give http://HOST:PORT", url);
  MG_CHECK(url.find_first_of("/?#@ ", kScheme.size()) == url.npos,
           "the address {} has more than a host and a port; give http://HOST:PORT", url);
}

// Tries to connect for at most a second. Returns the error number, or 0 on success.
int error_of_connecting(const addrinfo& to) {
  const int file = ::socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (file < 0) return errno;
  int error = ::connect(file, to.ai_addr, to.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd ready{.fd = file, .events = POLLOUT, .revents = 0};
    socklen_t size = sizeof error;
    if (::poll(&ready, 1, 1000) <= 0) {
      error = ETIMEDOUT;
    } else {
      ::getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  ::close(file);
  return error;
}

// Returns the reason why a host cannot be reached, which httplib does not report.
std::string connection_failure(const std::string& url) {
  std::string host = url.substr(kScheme.size()), port = "80";
  const size_t colon = host.find(':', host.starts_with('[') ? host.find(']') : 0);
  if (colon != host.npos) {
    port = host.substr(colon + 1);
    host.resize(colon);
  }
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0)
    return fmt::format("the host {} was not found ({})", host, ::gai_strerror(code));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  const int error = error_of_connecting(*addresses);
  if (error == ECONNREFUSED) return "connection refused: nothing listens there";
  return "cannot connect" + (error == 0 ? "" : ": " + std::generic_category().message(error));
}

std::string failure(httplib::Error error, const std::string& url, double seconds) {
  switch (error) {
    case httplib::Error::Connection: return connection_failure(url);
    case httplib::Error::ConnectionTimeout:
      return fmt::format("no connection was made within {} seconds", seconds);
    case httplib::Error::Read:
      return fmt::format("the connection was closed, or nothing was received for {} seconds",
                         seconds);
    case httplib::Error::Write: return "the connection was closed while the request was being sent";
    case httplib::Error::Canceled: return "the request was aborted by this program";
    default: return "HTTP failure " + httplib::to_string(error);
  }
}

}  // namespace

class HttpClient::Implementation {
 public:
  Implementation(const std::string& url, const std::string& key, double seconds)
      : client_(url), url_(url), seconds_(seconds) {
    MG_CHECK(client_.is_valid(), "the address {} is not valid; give http://HOST:PORT", url);
    const auto whole = static_cast<time_t>(seconds);
    const auto rest = static_cast<time_t>((seconds - static_cast<double>(whole)) * 1e6);
    client_.set_connection_timeout(whole, rest);
    client_.set_read_timeout(whole, rest);
    client_.set_write_timeout(whole, rest);
    client_.set_keep_alive(true);
    client_.set_tcp_nodelay(true);
    client_.set_follow_location(false);
    if (!key.empty()) headers_.emplace("Authorization", "Bearer " + key);
  }

  HttpReply send(const std::string& method, const std::string& path, const std::string& body,
                 const std::function<bool(std::string_view)>* receive) {
    HttpReply reply;
    int status = 0;
    httplib::Request request;
    request.method = method;
    request.path = path;
    request.headers = headers_;
    request.body = body;
    if (method != "GET") request.set_header("Content-Type", "application/json");
    request.response_handler = [&](const httplib::Response& response) {
      status = response.status;
      return true;
    };
    request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      if (status == 200 && receive != nullptr) return (*receive)({data, size});
      reply.body.append(data, size);
      return reply.body.size() <= kLongestBody;
    };
    const httplib::Result result = client_.send(request);
    if (result) {
      reply.status = result->status;
    } else {
      reply.error = failure(result.error(), url_, seconds_);
    }
    return reply;
  }

  void stop() { client_.stop(); }

 private:
  httplib::Client client_;
  httplib::Headers headers_;
  const std::string url_;
  const double seconds_;
};

HttpClient::HttpClient(const std::string& url, const std::string& key, double seconds) {
  check_url(url);
  implementation_ = std::make_unique<Implementation>(url, key, seconds);
}

HttpClient::~HttpClient() = default;

HttpReply HttpClient::get(const std::string& path) {
  return implementation_->send("GET", path, "", nullptr);
}

HttpReply HttpClient::post(const std::string& path, const std::string& json,
                           const std::function<bool(std::string_view)>& receive) {
  return implementation_->send("POST", path, json, &receive);
}

void HttpClient::stop() { implementation_->stop(); }

}  // namespace megatron::server
