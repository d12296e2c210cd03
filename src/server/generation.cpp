#include "server/generation.h"

#include <algorithm>

#include "server/api_error.h"

namespace megatron::server {
void fail_with(Failure failure, const std::string& reason) {
  switch (failure) {
    case Failure::deadline: throw deadline_exceeded();
    case Failure::stopped: throw server_draining();
    case Failure::grammar:
      throw invalid_request("the text cannot be continued in the requested format: " + reason, "",
                            "grammar_limit");
    case Failure::engine: break;
  }
  throw ApiError(500, "server_error", "the engine failed while computing this text", "",
                 "engine_error");
}

ChoicePlan plan_choice(const GenerationParameters& parameters, const TextModel& model,
                       const std::vector<int32_t>& prompt, int64_t room, uint64_t number,
                       uint64_t seed) {
  ChoicePlan plan;
  plan.request.number = number;
  plan.request.prompt = prompt;
  plan.request.max_tokens = room;
  plan.request.sampling = parameters.sampling(seed);
  plan.request.end_tokens = parameters.end_tokens(model);
  plan.request.adapter = model.adapter();
  plan.request.priority = parameters.priority;
  plan.request.expert_choices = parameters.routed_experts;
  if (parameters.grammar) {
    plan.request.grammar = parameters.grammar;
    plan.request.token_bytes = model.grammars().token_bytes();
  }
  plan.options.stops = parameters.stops;
  plan.options.end_tokens = plan.request.end_tokens;
  plan.options.min_tokens = parameters.options.min_tokens;
  return plan;
}

void score_prompt(ChoicePlan& plan, int64_t alternatives) {
  plan.request.logprobs = std::max<int64_t>(plan.request.logprobs, 0);
  plan.request.prompt_alternatives = std::max(plan.request.prompt_alternatives, alternatives);
}

Generation::Generation(const TextModel& model, Engines& engine, std::vector<ChoicePlan> plans,
                       std::optional<Clock::time_point> deadline) {
  int64_t routed = 0;  // tokens whose experts are returned
  for (const ChoicePlan& plan : plans)
    if (plan.request.expert_choices)
      routed += std::ssize(plan.request.prompt) + plan.request.max_tokens;
  require_routed_experts(model.facts(), routed);
  std::vector<inference::Request> requests;
  choices_.reserve(plans.size());
  for (ChoicePlan& plan : plans) {
    choices_.emplace_back(model, plan.request.given(model.facts()), std::move(plan.options));
    requests.push_back(std::move(plan.request));
  }
  call_ = engine.submit(std::move(requests), deadline);
}

bool Generation::finished() const {
  return std::ranges::all_of(choices_, [](const Choice& choice) { return choice.finished(); });
}

bool Generation::advance(const std::function<bool()>& client_gone) {
  while (!finished()) {
    const std::vector<EngineEvent> events = call_->wait(kTick);
    for (const EngineEvent& event : events) {
      if (choices_[event.request].finished()) continue;  // finished by a stop string
      if (event.failure) fail_with(*event.failure, event.update.error);
      if (choices_[event.request].take(event.update)) call_->cancel(event.request);
    }
    if (client_gone()) throw ClientGone();
    if (!events.empty()) return true;
  }
  return false;
}

void Generation::finish(const std::function<bool()>& client_gone) {
  while (advance(client_gone)) continue;
}

int64_t Generation::generated_tokens() const {
  int64_t all = 0;
  for (const Choice& choice : choices_) all += choice.generated_tokens();
  return all;
}

}  // namespace megatron::server
