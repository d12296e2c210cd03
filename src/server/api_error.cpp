#include "server/api_error.h"

#include "base/utf8.h"

namespace megatron::server {
namespace {

constexpr const char* kInvalid = "invalid_request_error";

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

Json ApiError::json() const {
  std::string message;
  append_lossy(what(), true, message);  // it may quote part of an invalid body
  return Json::Object{{"error", Json::Object{{"message", std::move(message)},
                                             {"type", type_},
                                             {"param", or_null(param_)},
                                             {"code", or_null(code_)}}}};
}

ApiError invalid_request(const std::string& message, std::string param, std::string code) {
  return {400, kInvalid, message, std::move(param), std::move(code)};
}

ApiError error_of_status(int status) {
  switch (status) {
    case 401:
      return {401, kInvalid,
              "no valid API key was given; send the header 'Authorization: Bearer KEY'", "",
              "invalid_api_key"};
    case 403:
      return {403, kInvalid,
              "this endpoint is only available if the server has API keys; start it with "
              "--api-key-file",
              "", "api_keys_needed"};
    case 404:
      return {404, kInvalid, "there is no such endpoint; docs/serve.md lists them", "",
              "not_found"};
    case 405:
      return {405, kInvalid, "this endpoint does not support that method", "",
              "method_not_allowed"};
    case 408: return {408, kInvalid, "the request was not complete in time", "", "request_timeout"};
    case 411:
      return {411, kInvalid, "the request needs the header Content-Length", "", "length_required"};
    case 413:
      return {413, kInvalid,
              "the request's body is larger than this server accepts (--max-body-bytes)", "",
              "body_too_large"};
    case 414: return {414, kInvalid, "the request's address is too long", "", "address_too_long"};
    case 415:
      return {415, kInvalid,
              "the body must be JSON: send 'Content-Type: application/json', without a "
              "Content-Encoding",
              "", "unsupported_media_type"};
    case 431:
      return {431, kInvalid, "the request's headers are too large", "", "headers_too_large"};
    default: break;
  }
  if (status >= 500)
    return {status, "server_error", "the server could not answer the request", "", "server_error"};
  return {status, kInvalid, "the request is not valid HTTP", "", "bad_request"};
}

ApiError server_draining() {
  return {503, "server_error", "the server is shutting down", "", "draining"};
}

ApiError deadline_exceeded() {
  return {504, "server_error", "the answer was not finished in time (--request-timeout)", "",
          "deadline_exceeded"};
}

ApiError too_many_requests(const std::string& message) {
  return {429, "rate_limit_error", message, "", "too_many_requests"};
}

}  // namespace megatron::server
