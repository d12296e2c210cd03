// The generated texts of one reply, from submission to completion.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "server/choice.h"
#include "server/engines.h"
#include "server/generation_parameters.h"

namespace megatron::server {

struct ChoicePlan {
  inference::Request request;
  ChoiceOptions options;
};

// Plans a text of up to `room` tokens after a prompt. number: index of the text in the reply, which
// together with the seed selects its random numbers, like the index of a prompt of `megatron
// generate`. seed: used if the request gives none.
ChoicePlan plan_choice(const GenerationParameters& parameters, const TextModel& model,
                       const std::vector<int32_t>& prompt, int64_t room, uint64_t number,
                       uint64_t seed);

// Makes the engine score the prompt, with the given number of alternatives at each token.
void score_prompt(ChoicePlan& plan, int64_t alternatives);

// Thrown when the client no longer waits for the reply.
struct ClientGone {};

constexpr std::chrono::milliseconds kTick{100};  // between two looks at the client
// Throws the ApiError for a failure of a request.
[[noreturn]] void fail_with(Failure failure, const std::string& reason);

// The texts of a request with beams are as many choices, best first.
class Generation {
 public:
  // Submits all. Throws ApiError and what Engines::submit throws.
  Generation(const TextModel& model, Engines& engine, std::vector<ChoicePlan> plans,
             std::optional<Clock::time_point> deadline);

  // Waits until a choice has made progress. Returns false if all are finished. Throws ApiError if
  // one failed, and ClientGone once client_gone(), which is called several times per second,
  // returns true.
  bool advance(const std::function<bool()>& client_gone);
  void finish(const std::function<bool()>& client_gone);  // runs until all are finished

  std::vector<Choice>& choices() { return choices_; }
  const std::vector<Choice>& choices() const { return choices_; }
  int64_t generated_tokens() const;
  int64_t cached_tokens(size_t choice) const;

 private:
  bool finished() const;
  void take(const EngineEvent& event);

  std::vector<Choice> choices_;
  std::vector<size_t> first_choices_;  // of each request, and the number of all
  std::unique_ptr<EngineCall> call_;
};

}  // namespace megatron::server
