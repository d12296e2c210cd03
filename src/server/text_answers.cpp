#include "server/text_answers.h"

#include <iterator>

namespace megatron::server {
namespace {

template <class T>
void append(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

TextAnswers answers_of(const Api& api, std::vector<inference::Request> requests,
                       const HttpRequest& http) {
  const size_t count = requests.size();
  TextAnswers answers;
  answers.updates.resize(count);
  for (inference::Request& request : requests) {
    answers.tokens += std::ssize(request.prompt);
    request.adapter = api.model.adapter();
  }
  const auto call = api.engine.submit(std::move(requests), api.deadline());
  for (size_t finished = 0; finished < count;) {
    for (EngineEvent& event : call->wait(kTick)) {
      if (event.failure) fail_with(*event.failure, event.update.error);
      inference::RequestUpdate& all = answers.updates[event.request];
      append(all.prompt_alternatives, event.update.prompt_alternatives);
      if (!event.update.finish) continue;
      all.scores = std::move(event.update.scores);
      all.embedding = std::move(event.update.embedding);
      ++finished;
    }
    if (http.client_gone()) throw ClientGone();
  }
  for (size_t i = 0; i < count; ++i) answers.cached += call->cached_tokens(i);
  return answers;
}

}  // namespace megatron::server
