// Handlers of the endpoints. All throw ApiError and ClientGone.
#pragma once

#include <chrono>
#include <optional>

#include "server/adapters.h"
#include "server/engines.h"
#include "server/generation.h"
#include "server/http/http_server.h"
#include "server/text_model.h"

namespace megatron::server {

// Objects that the endpoints use, from many threads at once.
struct Api {
  const TextModel& model;  // the one that the request names
  Engines& engine;
  Adapters& adapters;
  std::chrono::duration<double> request_timeout{600};

  std::optional<Clock::time_point> deadline() const {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(request_timeout);
  }
};

HttpAnswer list_models(const Api& api, const HttpRequest& request);
HttpAnswer show_model(const Api& api, const HttpRequest& request);  // /v1/models/{id}
HttpAnswer complete_text(const Api& api, const HttpRequest& request);
HttpAnswer complete_chat(const Api& api, const HttpRequest& request);
HttpAnswer embed(const Api& api, const HttpRequest& request);
HttpAnswer fill_mask(const Api& api, const HttpRequest& request);
HttpAnswer classify(const Api& api, const HttpRequest& request);
HttpAnswer score_pairs(const Api& api, const HttpRequest& request);
HttpAnswer rerank(const Api& api, const HttpRequest& request);
HttpAnswer pool(const Api& api, const HttpRequest& request);
HttpAnswer tokenize(const Api& api, const HttpRequest& request);
HttpAnswer detokenize(const Api& api, const HttpRequest& request);
HttpAnswer megatron_generate(const Api& api, const HttpRequest& request);
HttpAnswer reload(const Api& api, const HttpRequest& request);
HttpAnswer load_adapter(const Api& api, const HttpRequest& request);
HttpAnswer unload_adapter(const Api& api, const HttpRequest& request);

// Token counts of a reply, as its `usage`. cached: prompt tokens taken from the cache.
Json usage(int64_t prompt_tokens, int64_t generated_tokens, int64_t cached);
// The same for the log.
std::string usage_note(int64_t prompt_tokens, int64_t generated_tokens);
int64_t seconds_since_1970();

}  // namespace megatron::server
