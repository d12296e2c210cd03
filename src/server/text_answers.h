// Answers of the engine that are whole at once: scores, embeddings and predictions of masked
// tokens.
#pragma once

#include <vector>

#include "server/endpoints.h"

namespace megatron::server {

struct TextAnswers {
  std::vector<inference::RequestUpdate> updates;  // of each request
  int64_t tokens = 0, cached = 0;                 // of all texts
};

// Submits the requests, with the adapter that the HTTP request names, and waits for them. Throws
// ApiError if one fails, and ClientGone.
TextAnswers answers_of(const Api& api, std::vector<inference::Request> requests,
                       const HttpRequest& http);

}  // namespace megatron::server
