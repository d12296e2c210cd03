#include "server/choice.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "inference/expert_choices.h"

namespace megatron::server {
namespace {

bool contains(const std::vector<int32_t>& list, int32_t id) {
  return std::ranges::find(list, id) != list.end();
}

}  // namespace

Choice::Choice(const TextModel& model, std::span<const int32_t> prompt, ChoiceOptions options)
    : model_(model),
      options_(std::move(options)),
      stream_(model.tokenizer()),
      stop_(options_.stops) {
  // True if the text begins with a space or with the rest of a character depends on the last tokens
  // before it.
  constexpr size_t kLooksBack = 16;
  for (const int32_t token : prompt.last(std::min(prompt.size(), kLooksBack))) stream_.push(token);
}

bool Choice::take(const inference::RequestUpdate& update) {
  if (finished()) return false;
  std::ranges::copy(update.prompt_log_probabilities, std::back_inserter(of_prompt_));
  std::ranges::copy(update.prompt_alternatives, std::back_inserter(prompt_alternatives_));
  std::ranges::copy(update.expert_choices, std::back_inserter(expert_choices_));
  for (const inference::GeneratedToken& token : update.tokens) {
    push(token);
    if (!stop_.stopped()) continue;
    end(inference::Finish::stop);
    return !update.finish;
  }
  if (update.finish) end(*update.finish);
  return false;
}

Json Choice::routed_experts() const {
  if (expert_choices_.empty()) return Json();
  return inference::expert_choices_json(expert_choices_, model_.facts().experts.value());
}

void Choice::push(const inference::GeneratedToken& token) {
  ++generated_;
  log_probability_ += token.draw.log_probability;
  const int32_t id = token.draw.token;
  if (contains(options_.end_tokens, id)) {
    if (options_.gives_end_token) new_.tokens.push_back({token, decoded_});
    return;
  }
  new_.tokens.push_back({token, decoded_});
  if (contains(options_.shown_special, id)) {
    add(stream_.finish() + model_.tokenizer().token(id));
  } else {
    add(stream_.push(id));
  }
}

void Choice::add(std::string_view text) {
  decoded_ += text.size();
  const std::string certain =
      generated_ < options_.min_tokens ? std::string(text) : stop_.push(text);
  certain_ += certain.size();
  new_.text += certain;
}

void Choice::end(inference::Finish finish) {
  if (!stop_.stopped()) {
    add(stream_.finish());
    const std::string rest = stop_.finish();
    certain_ += rest.size();
    new_.text += rest;
  }
  finish_ = stop_.stopped() ? inference::Finish::stop : finish;
  if (stop_.stopped()) forget_tokens_behind(certain_);
}

// Tokens of the stop string are not part of the text.
void Choice::forget_tokens_behind(size_t length) {
  std::erase_if(new_.tokens, [&](const TextToken& token) { return token.begin >= length; });
}

Piece Choice::take_piece() {
  if (finished()) return std::exchange(new_, {});
  Piece piece;
  piece.text = std::exchange(new_.text, {});
  const auto uncertain = std::ranges::find_if(
      new_.tokens, [&](const TextToken& token) { return token.begin >= certain_; });
  piece.tokens.assign(std::move_iterator(new_.tokens.begin()), std::move_iterator(uncertain));
  new_.tokens.erase(new_.tokens.begin(), uncertain);
  return piece;
}

std::string Choice::finish_reason() const {
  return finish_ == inference::Finish::length || finish_ == inference::Finish::positions ? "length"
                                                                                         : "stop";
}

}  // namespace megatron::server
