// Common parts of the replies of /v1/completions and /v1/chat/completions.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "server/endpoints.h"
#include "server/event_stream.h"
#include "server/forms.h"
#include "server/identifier.h"

namespace megatron::server {

// Makes the object around the choices of a reply or of one streamed part; all parts of a reply have
// the same identifier.
class CompletionFrame {
 public:
  CompletionFrame(const char* id_prefix, const TextModel& model, const GenerationParameters& asked)
      : id_(random_identifier(id_prefix)),
        model_(model.name()),
        has_usage_(!asked.stream || asked.include_usage) {}

  // usage: null in all streamed parts except the last.
  Json of(const char* object, Json::Array choices, Json usage) const {
    Json::Object all = {{"id", id_},
                        {"object", object},
                        {"created", created_},
                        {"model", model_},
                        {"choices", std::move(choices)}};
    if (has_usage_) all.emplace_back("usage", std::move(usage));
    return Json(std::move(all));
  }

 private:
  const std::string id_, model_;
  const int64_t created_ = seconds_since_1970();
  const bool has_usage_;
};

// Completion is constructed from an Api and the parsed Request, and provides: Json
// whole(client_gone); void stream(events, client_gone); std::string note().
template <class Completion, class Request>
HttpAnswer answer_completion(const Api& api, Request read, const HttpRequest& request) {
  const bool streams = read.generation.stream;
  const SharedGrammar grammar = read.generation.grammar;
  const auto completion = std::make_shared<Completion>(api, std::move(read));
  if (streams) {
    return with_unenforced(
        event_stream([completion, gone = request.client_gone](
                         const EventWriter& events) { completion->stream(events, gone); },
                     [completion] { return completion->note(); }),
        grammar);
  }
  const Json whole = completion->whole(request.client_gone);
  return with_unenforced({.body = whole.dump(), .note = completion->note()}, grammar);
}

}  // namespace megatron::server
