#include "server/service.h"

#include <algorithm>
#include <cctype>
#include <new>

#include "base/log.h"
#include "inference/scores.h"
#include "server/chat_page.h"

namespace megatron::server {
namespace {

constexpr int kClientGone = 499;  // for the log: the client does not see it

bool is_json(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  type.erase(type.find_last_not_of(" \t") + 1);
  std::ranges::transform(type, type.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return type == "application/json";
}

// True for a plausible method name; clients may send anything.
bool is_method(std::string_view method) {
  constexpr size_t kLongest = 7;
  return !method.empty() && method.size() <= kLongest &&
         std::ranges::all_of(method, [](char c) { return c >= 'A' && c <= 'Z'; });
}

}  // namespace

Service::Service(const Api& api, Metrics& metrics, ServiceOptions options)
    : api_(api), metrics_(metrics), options_(std::move(options)) {}

std::span<const Service::Route> Service::routes() {
  static constexpr Route kRoutes[] = {
      {"GET", "/v1/models", &Service::of_api<list_models>},
      {"GET", "/v1/models/{id}", &Service::of_api<show_model>},
      {"POST", "/v1/completions", &Service::of_api<complete_text>, Route::Who::with_key,
       Route::Of::texts},
      {"POST", "/completions", &Service::of_api<complete_text>, Route::Who::with_key,
       Route::Of::texts},
      {"POST", "/v1/chat/completions", &Service::of_api<complete_chat>, Route::Who::with_key,
       Route::Of::texts},
      {"POST", "/chat/completions", &Service::of_api<complete_chat>, Route::Who::with_key,
       Route::Of::texts},
      {"POST", "/v1/embeddings", &Service::of_api<embed>},
      {"POST", "/v1/fill-mask", &Service::of_api<fill_mask>, Route::Who::with_key,
       Route::Of::masks},
      {"POST", "/fill-mask", &Service::of_api<fill_mask>, Route::Who::with_key, Route::Of::masks},
      {"POST", "/v1/classify", &Service::of_api<classify>, Route::Who::with_key, Route::Of::scores},
      {"POST", "/classify", &Service::of_api<classify>, Route::Who::with_key, Route::Of::scores},
      {"POST", "/v1/score", &Service::of_api<score_pairs>, Route::Who::with_key, Route::Of::scores},
      {"POST", "/score", &Service::of_api<score_pairs>, Route::Who::with_key, Route::Of::scores},
      {"POST", "/v1/rerank", &Service::of_api<rerank>, Route::Who::with_key, Route::Of::scores},
      {"POST", "/v2/rerank", &Service::of_api<rerank>, Route::Who::with_key, Route::Of::scores},
      {"POST", "/rerank", &Service::of_api<rerank>, Route::Who::with_key, Route::Of::scores},
      {"POST", "/v1/pooling", &Service::of_api<pool>, Route::Who::with_key, Route::Of::scores},
      {"POST", "/pooling", &Service::of_api<pool>, Route::Who::with_key, Route::Of::scores},
      {"POST", "/tokenize", &Service::of_api<tokenize>},
      {"POST", "/detokenize", &Service::of_api<detokenize>},
      {"PUT", "/api", &Service::of_api<megatron_generate>, Route::Who::with_key, Route::Of::texts},
      {"POST", "/admin/reload", &Service::of_api<reload>, Route::Who::admin},
      {"POST", "/v1/load_lora_adapter", &Service::of_api<load_adapter>},
      {"POST", "/v1/unload_lora_adapter", &Service::of_api<unload_adapter>},
      {"GET", "/metrics", &Service::metrics},
      {"GET", "/", &Service::page, Route::Who::anyone, Route::Of::texts},
      {"GET", "/health", &Service::health, Route::Who::anyone},
      {"GET", "/v1/health", &Service::health, Route::Who::anyone},
  };
  return kRoutes;
}

std::shared_ptr<const TextModel> Service::named_adapter(const HttpRequest& request) const {
  if (request.body.empty() || api_.adapters.empty()) return nullptr;
  const Json body = parse_body(request.body);
  const Json* const name = body.find("model");
  return name == nullptr || !name->is_string() ? nullptr : api_.adapters.find(name->as_string());
}

HttpAnswer Service::kept(HttpAnswer answer, std::shared_ptr<const TextModel> model) {
  if (answer.stream)
    answer.stream = [model = std::move(model), stream = std::move(answer.stream)](
                        const StreamWriter& writer) { return stream(writer); };
  return answer;
}

bool Service::Route::has(std::string_view asked) const {
  constexpr std::string_view kId = "{id}";
  if (!path.ends_with(kId)) return asked == path;
  const std::string_view before = path.substr(0, path.size() - kId.size());
  return asked.size() > before.size() && asked.starts_with(before);
}

// Returns the route of a path, with or without a slash at its end: the one with this method, or
// else one with another method. Returns null if there is no such path.
const Service::Route* Service::find(const std::string& method, std::string_view path) {
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const std::string_view wanted = method == "HEAD" ? "GET" : std::string_view(method);
  const Route* of_path = nullptr;
  for (const Route& route : routes()) {
    if (!route.has(path)) continue;
    if (route.method == wanted) return &route;
    of_path = &route;
  }
  return of_path;
}

HttpAnswer Service::health(const HttpRequest&) const {
  const bool ready = !draining_;
  return {
      .status = ready ? 200 : 503,
      .body = Json(Json::Object{{"status", ready ? "ok" : "draining"}, {"ready", ready}}).dump()};
}

HttpAnswer Service::metrics(const HttpRequest&) const {
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = metrics_.text(api_.engine.replica_counts())};
}

HttpAnswer Service::page(const HttpRequest&) const {
  return {.content_type = "text/html; charset=utf-8",
          .body = std::string(kChatPage),
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                       "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                       "frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}}};
}

void Service::require_kind(const Route& route) const {
  const TextModel& model = api_.model;
  const Route::Of own = model.scores()            ? Route::Of::scores
                        : model.facts().headless  ? Route::Of::embeddings
                        : model.facts().two_sided ? Route::Of::masks
                                                  : Route::Of::texts;
  if (route.of == Route::Of::any || route.of == own) return;
  std::string is;
  if (own == Route::Of::scores && !inference::scores_texts(model.facts()))
    is = "scores the tokens of texts and generates none; use /pooling";
  else if (own == Route::Of::scores)
    is = fmt::format(
        "scores texts ({} labels) and generates none; use /v1/classify, /v1/score, /v1/rerank or "
        "/pooling",
        model.facts().score_labels);
  else if (own == Route::Of::embeddings)
    is = fmt::format(
        "is an encoder ({}) without a head, which gives embeddings alone; use "
        "/v1/embeddings",
        model.facts().family);
  else if (own == Route::Of::masks)
    is = fmt::format(
        "is an encoder ({}) with a head for masked tokens, which generates and scores no texts; "
        "use /v1/fill-mask or /v1/embeddings",
        model.facts().family);
  else if (route.of == Route::Of::masks && model.encodes())
    is = "is an encoder-decoder, which predicts next tokens and no masked ones; use "
         "/v1/completions, or serve an encoder (BERT and the like)";
  else if (route.of == Route::Of::masks)
    is = "is a decoder, which predicts next tokens and no masked ones; use /v1/completions or "
         "/v1/chat/completions, or serve an encoder (BERT and the like)";
  else
    is = "is a language model, which scores no texts; use /v1/chat/completions or "
         "/v1/completions, or serve a model with a score head (ForSequenceClassification)";
  throw invalid_request(
      fmt::format("{} is not for this model: '{}' {}", route.path, model.name(), is), "model",
      "wrong_kind_of_model");
}

HttpAnswer Service::with_origin(HttpAnswer answer) const {
  if (options_.cors_origin.empty()) return answer;
  answer.headers.emplace_back("Access-Control-Allow-Origin", options_.cors_origin);
  answer.headers.emplace_back("Access-Control-Expose-Headers", "X-Unenforced-Keywords");
  answer.headers.emplace_back("Vary", "Origin");
  return answer;
}

HttpAnswer Service::error(const ApiError& error) const {
  HttpAnswer answer{.status = error.status(), .body = error.json().dump(), .note = error.note()};
  if (error.status() == 429 || error.status() == 503)
    answer.headers.emplace_back("Retry-After", "1");
  if (error.status() == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  return with_origin(std::move(answer));
}

HttpAnswer Service::unreadable(int status) { return error(error_of_status(status)); }

// Health checks are answered as usual, so that they see a busy server as alive.
HttpAnswer Service::beyond_limit(const HttpRequest& request, int64_t connections) {
  const Route* route = find(request);
  if (route != nullptr && route->answer == &Service::health && request.method == "GET")
    return health(request);
  return error({503, "server_error",
                fmt::format("{} clients are connected, the limit of this server "
                            "(--max-connections); try again later",
                            connections),
                "", "too_many_connections"});
}

std::optional<HttpAnswer> Service::refuse(const HttpRequest& request) {
  if (request.method == "OPTIONS" && !options_.cors_origin.empty()) return std::nullopt;
  const Route* route = find(request);
  if (route == nullptr) return unreadable(404);
  if (route->who == Route::Who::admin && options_.keys.empty()) return unreadable(403);
  if (route->who != Route::Who::anyone && !options_.keys.allow(request.header("Authorization")))
    return unreadable(401);
  const bool same =
      route->method == request.method || (route->method == "GET" && request.method == "HEAD");
  if (!same) {
    HttpAnswer answer = unreadable(405);
    answer.headers.emplace_back("Allow", route->method);
    return answer;
  }
  if (route->method == "GET") return std::nullopt;
  if (!is_json(request.header("Content-Type")) || !request.header("Content-Encoding").empty())
    return unreadable(415);
  return std::nullopt;
}

HttpAnswer Service::answer(const HttpRequest& request) {
  if (request.method == "OPTIONS") {
    return with_origin({.status = 204,
                        .body = {},
                        .headers = {{"Access-Control-Allow-Methods", "GET, POST, PUT"},
                                    {"Access-Control-Allow-Headers", "Authorization, Content-Type"},
                                    {"Access-Control-Max-Age", "600"}}});
  }
  try {
    const Route* route = find(request);
    require_kind(*route);
    return with_origin((this->*route->answer)(request));
  } catch (const ClientGone&) {
    return {.status = kClientGone, .body = {}, .note = "client gone"};
  } catch (const ApiError& e) {
    return error(e);
  } catch (const Error& e) {
    return error(invalid_request(e.what()));
  } catch (const std::bad_alloc&) {
    return error({503, "server_error", "the server is out of memory", "", "out_of_memory"});
  } catch (const std::exception& e) {
    log::error("{} {} failed: {}", request.method, request.path, e.what());
    return unreadable(500);
  }
}

void Service::done(const std::string& method, const std::string& path, int status, double seconds,
                   const std::string& note) {
  const Route* route = find(method, path);
  const std::string_view endpoint = route != nullptr ? route->path : "other";
  metrics_.answered(endpoint, status);
  log::info("{} {} {} in {:.3f} s{}{}", is_method(method) ? method : "-", endpoint, status, seconds,
            note.empty() ? "" : ": ", note);
}

}  // namespace megatron::server
