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
  plan.request.beams = parameters.beams;
  if (parameters.beams && parameters.grammar)
    throw invalid_request(
        "use_beam_search excludes a constrained text (response_format, guided_*, "
        "structured_outputs, tools that must be called); leave out one of them",
        "use_beam_search");
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
  for (ChoicePlan& plan : plans) {
    first_choices_.push_back(choices_.size());
    const int64_t texts = plan.request.beams ? plan.request.beams->returned : 1;
    for (int64_t i = 0; i < texts; ++i)
      choices_.emplace_back(model, plan.request.given(model.facts()), plan.options);
    requests.push_back(std::move(plan.request));
  }
  first_choices_.push_back(choices_.size());
  call_ = engine.submit(std::move(requests), deadline);
}

bool Generation::finished() const {
  return std::ranges::all_of(choices_, [](const Choice& choice) { return choice.finished(); });
}

// The tokens of beams so far are those of every text; each gets its own at the end.
void Generation::take(const EngineEvent& event) {
  const size_t first = first_choices_[event.request], end = first_choices_[event.request + 1];
  bool stopped = false;
  for (size_t c = first; c < end; ++c) {
    Choice& choice = choices_[c];
    if (choice.finished()) continue;  // finished by a stop string
    if (event.failure) fail_with(*event.failure, event.update.error);
    if (event.update.beams.empty()) {
      stopped = choice.take(event.update) || stopped;
      continue;
    }
    inference::RequestUpdate update = event.update;
    update.tokens.clear();
    if (c - first < update.beams.size()) {
      const inference::BeamResult& beam = update.beams[c - first];
      update.tokens.assign(beam.tokens.begin() + choice.generated_tokens(), beam.tokens.end());
      update.finish = beam.finish;
      choice.set_score(beam.score);
    }
    choice.take(update);
  }
  if (stopped) call_->cancel(event.request);
}

int64_t Generation::cached_tokens(size_t choice) const {
  const auto after = std::ranges::upper_bound(first_choices_, choice);
  return call_->cached_tokens(static_cast<size_t>(after - first_choices_.begin()) - 1);
}

bool Generation::advance(const std::function<bool()>& client_gone) {
  while (!finished()) {
    const std::vector<EngineEvent> events = call_->wait(kTick);
    for (const EngineEvent& event : events) take(event);
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
