// Errors in the format of the API: {"error": {message, type, param, code}}.
#pragma once

#include <string>

#include "base/error.h"
#include "base/json.h"

namespace megatron::server {

// An error reply. `param`: the field of the request; `code`: a machine-readable code; "" is written
// as null.
class ApiError : public Error {
 public:
  ApiError(int status, std::string type, const std::string& message, std::string param = "",
           std::string code = "")
      : Error(message),
        status_(status),
        type_(std::move(type)),
        param_(std::move(param)),
        code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& code() const { return code_; }
  // Note for the log: the code, or else the field.
  const std::string& note() const { return code_.empty() ? param_ : code_; }
  Json json() const;

 private:
  int status_;
  std::string type_, param_, code_;
};

// Status 400: an error in field `param` that the client can correct.
ApiError invalid_request(const std::string& message, std::string param = "", std::string code = "");
// General error for a status, if nothing else is known, e.g. for a request that could not be read.
ApiError error_of_status(int status);
ApiError server_draining();                              // 503
ApiError deadline_exceeded();                            // 504
ApiError too_many_requests(const std::string& message);  // 429

}  // namespace megatron::server
