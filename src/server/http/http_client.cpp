#include "server/http/http_client.h"

#include <httplib.h>

#include "base/error.h"

namespace megatron::server {
namespace {

constexpr size_t kLongestBody = 1 << 20;  // of a reply that is kept

void check_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  MG_CHECK(url.starts_with(kScheme) && url.size() > kScheme.size(),
           "the address {} does not begin with http:// and a host; give http://HOST:PORT", url);
  MG_CHECK(url.find_first_of("/?#@ ", kScheme.size()) == url.npos,
           "the address {} is more than a host and a port; give http://HOST:PORT", url);
}

}  // namespace

class HttpClient::Implementation {
 public:
  Implementation(const std::string& url, const std::string& key, double seconds) : client_(url) {
    MG_CHECK(client_.is_valid(), "the address {} cannot be read; give http://HOST:PORT", url);
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
      reply.error = httplib::to_string(result.error());
    }
    return reply;
  }

  void stop() { client_.stop(); }

 private:
  httplib::Client client_;
  httplib::Headers headers_;
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
