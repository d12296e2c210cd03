// POST /v1/completions
#include <algorithm>
#include <utility>

#include "server/completion_answer.h"
#include "server/completion_request.h"
#include "server/logprobs.h"

namespace megatron::server {
namespace {

std::vector<ChoicePlan> plan(const CompletionRequest& r, const TextModel& model) {
  constexpr int64_t kUsualTokens = 16;  // OpenAI's
  const uint64_t seed = random_seed();
  std::vector<ChoicePlan> plans;
  for (const Prompt& prompt : r.prompts) {
    const int64_t room =
        room_for_text(model, std::ssize(prompt.tokens), r.generation.max_tokens, kUsualTokens);
    for (int64_t i = 0; i < (r.generation.beams ? 1 : r.best_of); ++i) {
      plans.push_back(plan_choice(r.generation, model, prompt.tokens, room, plans.size(), seed));
      plans.back().request.logprobs = r.logprobs.value_or(-1);
      if (r.echo && r.logprobs.value_or(0) > 0) score_prompt(plans.back(), *r.logprobs);
      if (i == 0 && r.generation.prompt_logprobs)
        score_prompt(plans.back(), *r.generation.prompt_logprobs);
      plans.back().options.gives_end_token = true;
    }
  }
  return plans;
}

// A completion in progress: the texts of prompt p are choices [p best_of, (p + 1) best_of).
class Completion {
 public:
  Completion(const Api& api, CompletionRequest request)
      : request_(std::move(request)),
        model_(api.model),
        frame_("cmpl-", api.model, request_.generation),
        generation_(api.model, api.engine, plan(request_, api.model), api.deadline()),
        begun_(generation_.choices().size()) {
    logprobs_.reserve(begun_.size());
    for (size_t i = 0; i < begun_.size(); ++i) logprobs_.emplace_back(model_);
    for (const Prompt& prompt : request_.prompts) prompt_tokens_ += std::ssize(prompt.tokens);
  }

  Json whole(const std::function<bool()>& client_gone) {
    generation_.finish(client_gone);
    Json::Array choices;
    for (size_t p = 0; p < request_.prompts.size(); ++p) {
      const Json scores = scores_of(p);
      for (const size_t c : best_of(p)) {
        choices.push_back(choice(c, choices.size(), take(c), true));
        if (!scores.is_null()) choices.back().set("prompt_logprobs", scores);
      }
    }
    return frame(std::move(choices), all_usage());
  }

  void stream(const EventWriter& events, const std::function<bool()>& client_gone) {
    std::vector<bool> ended(begun_.size());
    while (generation_.advance(client_gone)) {
      for (size_t c = 0; c < begun_.size(); ++c) {
        const Choice& of = generation_.choices()[c];
        Piece piece = take(c);
        if (ended[c] || (piece.empty() && !of.finished())) continue;
        ended[c] = of.finished();
        Json::Array one;
        one.push_back(choice(c, c, std::move(piece), ended[c]));
        events.send(frame(std::move(one), Json()));
      }
    }
    if (request_.generation.include_usage) events.send(frame({}, all_usage()));
  }

  std::string note() const { return usage_note(prompt_tokens_, generation_.generated_tokens()); }

 private:
  // Returns the texts of a prompt to include in the reply: those with the largest mean
  // log-probability, best first; if all are included, in their order.
  std::vector<size_t> best_of(size_t prompt) const {
    const auto all = static_cast<size_t>(request_.best_of);
    std::vector<size_t> chosen;
    for (size_t i = 0; i < all; ++i) chosen.push_back(prompt * all + i);
    if (request_.best_of == request_.generation.n) return chosen;
    const auto mean = [&](size_t c) {
      const Choice& choice = generation_.choices()[c];
      return choice.log_probability() /
             static_cast<double>(std::max<int64_t>(choice.generated_tokens(), 1));
    };
    std::ranges::stable_sort(chosen, std::ranges::greater(), mean);
    chosen.resize(static_cast<size_t>(request_.generation.n));
    return chosen;
  }

  // Log-probabilities of a prompt's tokens, if requested. The first text of the prompt has them.
  Json scores_of(size_t prompt) const {
    if (!request_.generation.prompt_logprobs) return Json();
    const Choice& choice = generation_.choices()[prompt * static_cast<size_t>(request_.best_of)];
    return prompt_logprobs(model_, request_.prompts[prompt].tokens,
                           choice.prompt_log_probabilities(), choice.prompt_alternatives(),
                           *request_.generation.prompt_logprobs);
  }

  // Takes a choice's new text; begins with the prompt if that is echoed.
  Piece take(size_t c) {
    Choice& choice = generation_.choices()[c];
    Piece piece = choice.take_piece();
    if (piece.empty() && !choice.finished()) return piece;
    if (request_.echo && !begun_[c]) {
      const Prompt& prompt = request_.prompts[c / static_cast<size_t>(request_.best_of)];
      if (request_.logprobs)
        logprobs_[c].add_prompt(prompt.text, prompt.tokens, choice.prompt_log_probabilities(),
                                choice.prompt_alternatives(), *request_.logprobs);
      if (request_.logprobs) logprobs_[c].add(piece);
      piece.text = prompt.text + piece.text;
    } else if (request_.logprobs) {
      logprobs_[c].add(piece);
    }
    begun_[c] = true;
    return piece;
  }

  Json choice(size_t c, size_t index, Piece piece, bool last) {
    const Choice& of = generation_.choices()[c];
    Json::Object choice = {{"index", static_cast<int64_t>(index)},
                           {"text", std::move(piece.text)},
                           {"logprobs", request_.logprobs ? logprobs_[c].take() : Json()},
                           {"finish_reason", last ? Json(of.finish_reason()) : Json()}};
    if (request_.generation.routed_experts)
      choice.emplace_back("routed_experts", of.routed_experts());
    return Json(std::move(choice));
  }

  Json all_usage() const {
    int64_t cached = 0;  // counts each prompt once
    for (size_t p = 0; p < request_.prompts.size(); ++p)
      cached += generation_.cached_tokens(p * static_cast<size_t>(request_.best_of));
    return usage(prompt_tokens_, generation_.generated_tokens(), cached);
  }

  Json frame(Json::Array choices, Json usage) const {
    return frame_.of("text_completion", std::move(choices), std::move(usage));
  }

  const CompletionRequest request_;
  const TextModel& model_;
  const CompletionFrame frame_;
  Generation generation_;
  std::vector<bool> begun_;  // whether output of each choice was taken
  std::vector<CompletionLogprobs> logprobs_;
  int64_t prompt_tokens_ = 0;
};

}  // namespace

HttpAnswer complete_text(const Api& api, const HttpRequest& request) {
  return answer_completion<Completion>(api, read_completion(parse_body(request.body), api.model),
                                       request);
}

}  // namespace megatron::server
