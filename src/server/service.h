// The API service: routes paths to endpoints, checks access, and replies to failures.
#pragma once

#include <atomic>
#include <string>

#include "server/api_keys.h"
#include "server/endpoints.h"

namespace megatron::server {

struct ServiceOptions {
  ApiKeys keys;
  std::string cors_origin;  // origin whose pages may send requests: scheme and host, or *; "": none
};

class Service final : public HttpHandler {
 public:
  Service(const Api& api, Metrics& metrics, ServiceOptions options);

  void refuse_more() { draining_ = true; }  // reported by /health

  std::optional<HttpAnswer> refuse(const HttpRequest& request) override;
  HttpAnswer answer(const HttpRequest& request) override;
  HttpAnswer unreadable(int status) override;
  HttpAnswer beyond_limit(const HttpRequest& request, int64_t connections) override;
  void done(const std::string& method, const std::string& path, int status, double seconds,
            const std::string& note) override;

 private:
  // path: "{id}" at its end matches any text. admin: the route needs a key; a server without keys
  // answers 403.
  struct Route {
    std::string_view method, path;
    HttpAnswer (Service::*answer)(const HttpRequest&) const;
    enum class Who { with_key, anyone, admin } who = Who::with_key;
    // The kind of model that it needs; no endpoint needs one of embeddings alone.
    enum class Of { any, texts, scores, masks, embeddings } of = Of::any;

    bool has(std::string_view asked) const;
  };
  template <HttpAnswer (*Endpoint)(const Api&, const HttpRequest&)>
  HttpAnswer of_api(const HttpRequest& request) const {
    const std::shared_ptr<const TextModel> adapter = named_adapter(request);
    if (adapter == nullptr) return Endpoint(api_, request);
    return kept(Endpoint({*adapter, api_.engine, api_.adapters, api_.request_timeout}, request),
                adapter);
  }
  // The adapter that the body of a request names; null: none.
  std::shared_ptr<const TextModel> named_adapter(const HttpRequest& request) const;
  // The answer keeps what its stream reads.
  static HttpAnswer kept(HttpAnswer answer, std::shared_ptr<const TextModel> model);
  HttpAnswer health(const HttpRequest& request) const;
  HttpAnswer metrics(const HttpRequest& request) const;
  HttpAnswer page(const HttpRequest& request) const;
  static std::span<const Route> routes();
  static const Route* find(const std::string& method, std::string_view path);
  static const Route* find(const HttpRequest& request) {
    return find(request.method, request.path);
  }

  void require_kind(const Route& route) const;
  HttpAnswer error(const ApiError& error) const;
  HttpAnswer with_origin(HttpAnswer answer) const;

  const Api api_;
  Metrics& metrics_;
  const ServiceOptions options_;
  std::atomic<bool> draining_ = false;
};

}  // namespace megatron::server
