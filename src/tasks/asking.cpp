#include "tasks/asking.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>

#include "base/error.h"
#include "inference/stop_text.h"

namespace megatron::tasks {
namespace {

using inference::Engine;
using inference::Request;
using inference::RequestId;
using inference::RequestUpdate;

// Text generated after a prompt: whole characters, up to a stop text or an end token.
class Text {
 public:
  Text(const tokenizers::Tokenizer& tokenizer, std::span<const int32_t> prompt,
       const std::vector<std::string>& until, const std::vector<int32_t>& end_tokens)
      : stream_(tokenizer), stop_(until), end_tokens_(end_tokens) {
    // The beginning of a text (a space or the rest of a character) depends on the last tokens
    // before it.
    constexpr size_t kLooksBack = 16;
    for (const int32_t token : prompt.last(std::min(prompt.size(), kLooksBack)))
      stream_.push(token);
  }
  // Returns true once the text has ended.
  bool push(int32_t token) {
    if (std::ranges::find(end_tokens_, token) == end_tokens_.end())
      text_ += stop_.push(stream_.push(token));
    return stop_.stopped();
  }
  std::string finish() {
    text_ += stop_.push(stream_.finish());
    return text_ + stop_.finish();
  }

 private:
  tokenizers::DecodeStream stream_;
  inference::StopText stop_;
  const std::vector<int32_t>& end_tokens_;
  std::string text_;
};

class Asking {
 public:
  Asking(const tokenizers::Tokenizer& tokenizer, const AskOptions& options,
         std::span<const Question> questions, const std::function<void(size_t, Answer)>& answered,
         const std::function<void()>& progress, Engine& engine)
      : tokenizer_(tokenizer),
        options_(options),
        questions_(questions),
        answered_(answered),
        progress_(progress),
        engine_(engine) {}

  void run() {
    for (;;) {
      while (engine_.running() + engine_.waiting() < options_.engine.max_requests)
        if (!submit_next()) break;
      if (engine_.idle()) return;
      for (RequestUpdate& update : engine_.step()) take(update);
    }
  }

 private:
  struct Part {
    size_t question = 0, number = 0;  // question and continuation
  };
  struct Running {
    Part part;
    int64_t scored = 0;
    std::unique_ptr<Text> text;
  };
  struct Open {
    Answer answer;
    size_t left = 0;  // remaining requests
  };

  bool submit_next() {
    Part part;
    if (!others_.empty()) {
      part = others_.front();
      others_.pop_front();
    } else if (next_ < questions_.size()) {
      part.question = next_++;
      open_[part.question] = {.answer = {.log_likelihoods = std::vector<double>(
                                             questions_[part.question].continuations.size())},
                              .left = questions_[part.question].requests()};
    } else {
      return false;
    }
    Running running{.part = part};
    const Question& question = questions_[part.question];
    if (question.continuations.empty())
      running.text =
          std::make_unique<Text>(tokenizer_, question.prompt, question.until, options_.end_tokens);
    running_[engine_.submit(request_of(part))] = std::move(running);
    return true;
  }

  Request request_of(const Part& part) const {
    const Question& question = questions_[part.question];
    Request request{.number = part.question};
    request.sampling.temperature = 0;
    if (question.continuations.empty()) {
      request.prompt = question.prompt;
      request.max_tokens = question.max_tokens;
      request.end_tokens = options_.end_tokens;
      return request;
    }
    const TokenPair& pair = question.continuations[part.number];
    request.prompt = pair.tokens;
    request.max_tokens = 0;
    request.logprobs = 0;
    request.prompt_alternatives = question.wants_greedy ? 1 : -1;
    request.first_scored = pair.context;
    return request;
  }

  void take(RequestUpdate& update) {
    Running& running = running_.at(update.id);
    const Question& question = questions_[running.part.question];
    Answer& answer = open_.at(running.part.question).answer;
    MG_CHECK(update.finish != inference::Finish::failed, "{}: {}", question.place, update.error);
    for (size_t i = 0; i < update.prompt_log_probabilities.size(); ++i) {
      const TokenPair& pair = question.continuations[running.part.number];
      const double value = update.prompt_log_probabilities[i];
      MG_CHECK(!std::isnan(value),
               "{}: the log-likelihood of a token is NaN: the model's weights contain NaN or "
               "infinity, or its activations overflow",
               question.place);
      answer.log_likelihoods[running.part.number] += value;
      const auto at = static_cast<size_t>(pair.context + running.scored++);
      if (question.wants_greedy)
        answer.is_greedy =
            answer.is_greedy && update.prompt_alternatives[i].likely[0].token == pair.tokens[at];
    }
    bool ended = update.finish.has_value();
    for (const inference::GeneratedToken& token : update.tokens) {
      if (!running.text->push(token.draw.token)) continue;
      if (!ended) engine_.cancel(update.id);
      ended = true;
      break;
    }
    if (ended) end(update.id);
  }

  void end(RequestId id) {
    const auto at = running_.find(id);
    const Running running = std::move(at->second);
    running_.erase(at);
    const size_t question = running.part.question;
    if (running.text) open_.at(question).answer.text = running.text->finish();
    if (running.part.number == 0)
      for (size_t n = 1; n < questions_[question].continuations.size(); ++n)
        others_.push_back({question, n});
    progress_();
    if (--open_.at(question).left > 0) return;
    answered_(question, std::move(open_.at(question).answer));
    open_.erase(question);
  }

  const tokenizers::Tokenizer& tokenizer_;
  const AskOptions& options_;
  const std::span<const Question> questions_;
  const std::function<void(size_t, Answer)>& answered_;
  const std::function<void()>& progress_;
  Engine& engine_;
  size_t next_ = 0;
  std::deque<Part> others_;  // requests of questions whose first one is done
  std::map<RequestId, Running> running_;
  std::map<size_t, Open> open_;
};

}  // namespace

void ask(const models::Stage& stage, Runtime& runtime, const tokenizers::Tokenizer& tokenizer,
         const AskOptions& options, std::span<const Question> questions,
         const std::function<void(size_t question, Answer)>& answered,
         const std::function<void()>& progress) {
  if (questions.empty()) return;
  AskOptions of_engine = options;
  int64_t longest = 0, requests = 0;
  for (const Question& question : questions) {
    longest = std::max(longest, std::ssize(question.prompt) + question.max_tokens);
    for (const TokenPair& pair : question.continuations)
      longest = std::max(longest, std::ssize(pair.tokens));
    requests += static_cast<int64_t>(question.requests());
  }
  if (of_engine.engine.max_length == 0) of_engine.engine.max_length = longest;
  of_engine.engine.max_requests = std::min(of_engine.engine.max_requests, requests);
  of_engine.engine.vocabulary = tokenizer.vocabulary_size();
  Engine engine(stage, runtime, of_engine.engine);
  Asking(tokenizer, of_engine, questions, answered, progress, engine).run();
}

}  // namespace megatron::tasks
