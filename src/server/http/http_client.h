// An HTTP client for one server, which sends requests one after the other over one connection.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace megatron::server {

struct HttpReply {
  int status = 0;     // 0: no answer, or an incomplete one
  std::string body;   // empty if it was passed to `receive`
  std::string error;  // reason, with status 0
};

class HttpClient {
 public:
  // url: http://HOST[:PORT], without a path; throws Error for others. key: API key, "" for none.
  // seconds: time limit without any data from the server.
  HttpClient(const std::string& url, const std::string& key, double seconds);
  ~HttpClient();

  HttpReply get(const std::string& path);
  // receive: called with the body of a reply with status 200 piece by piece; returning false ends
  // the request.
  HttpReply post(const std::string& path, const std::string& json,
                 const std::function<bool(std::string_view)>& receive);
  // Ends the request that another thread is waiting for, if any.
  void stop();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace megatron::server
