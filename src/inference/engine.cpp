// B places, T new tokens of a pass each, H hidden, V vocabulary
#include "inference/engine.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace megatron::inference {
namespace {

nn::SequenceStateShape state_shape(const models::Stage& stage, const EngineOptions& options) {
  options.check();
  const int64_t positions = stage.model()->max_position_embeddings();
  return stage.state_shape(
      options.batch, options.capacity > 0 ? std::min(options.capacity, positions) : positions);
}

}  // namespace

void EngineOptions::check() const {
  MG_CHECK(batch > 0, "--batch-size is {}; it must be positive", batch);
  MG_CHECK(prefill > 0, "--prefill-tokens is {}; it must be positive", prefill);
  MG_CHECK(vocabulary >= 0, "the vocabulary to sample from has {} ids; give 0 for the model's own",
           vocabulary);
  MG_CHECK(capacity >= 0,
           "the KV cache is to hold {} tokens per request; give 0 for as many as the model has "
           "positions",
           capacity);
}

int64_t EngineOptions::drawn_vocabulary(const models::Model& model) const {
  return vocabulary > 0 ? std::min(vocabulary, model->vocab_size()) : model->vocab_size();
}

Engine::Engine(const models::Stage& stage, Runtime& runtime, const EngineOptions& options)
    : stage_(stage),
      runtime_(runtime),
      options_(options),
      vocabulary_(options.drawn_vocabulary(stage.model())),
      state_(state_shape(stage, options), stage.parameters()[0]->parameter.value.dtype(), runtime),
      places_(static_cast<size_t>(options.batch)) {}

RequestId Engine::submit(Request request) {
  request.check(stage_.model(), vocabulary_);
  const int64_t longest = request.longest(stage_.model()), capacity = state_.shape().capacity;
  MG_CHECK(longest <= capacity,
           "request {} may grow to {} tokens (a prompt of {} and --max-tokens {}), but the KV "
           "cache holds {} per request; shorten the prompt or lower --max-tokens",
           request.number, longest, request.prompt.size(), request.max_tokens, capacity);
  waiting_.push_back({++last_, std::move(request)});
  return last_;
}

Engine::Updates Engine::step() {
  admit();
  if (running() == 0) return {};
  forget_other_angles();
  const double begin = now_seconds();
  const std::optional<ForwardPassPlan> prompts = plan_prompts();
  Updates updates = run_pass(prompts ? *prompts : plan_next_tokens());
  int64_t drawn = 0;
  for (const RequestUpdate& update : updates) drawn += static_cast<int64_t>(update.tokens.size());
  statistics_.generated_tokens += drawn;
  if (!prompts) statistics_.decoded_tokens += drawn;
  (prompts ? statistics_.prefill_seconds : statistics_.decode_seconds) += now_seconds() - begin;
  return updates;
}

bool Engine::cancel(RequestId id) {
  const auto waits = std::ranges::find(waiting_, id, &Waiting::id);
  if (waits != waiting_.end()) {
    waiting_.erase(waits);
    return true;
  }
  const auto runs = std::ranges::find(places_, id, &Place::id);
  if (id == 0 || runs == places_.end()) return false;
  release(static_cast<size_t>(runs - places_.begin()));
  return true;
}

int64_t Engine::running() const { return std::ranges::count_if(places_, &Place::busy); }

int64_t Engine::unread(size_t place) const {
  return static_cast<int64_t>(places_[place].tokens.size()) - length(place);
}

bool Engine::reads_prompt(size_t place) const {
  const Place& p = places_[place];
  return p.busy() &&
         (length(place) < static_cast<int64_t>(p.request.prompt.size()) || unread(place) > 1);
}

void Engine::forget_other_angles() {
  for (size_t p = 0; p < places_.size(); ++p) {
    Place& place = places_[p];
    if (!place.busy()) continue;
    const int64_t now = stage_.model()->context_class(std::ssize(place.tokens));
    if (now != place.context_class) state_.truncate(static_cast<int64_t>(p), 0);
    place.context_class = now;
  }
}

// Of the places that read their prompts, or of those that do not, the one whose last pass is longest ago.
size_t Engine::longest_waiting(bool reads) const {
  size_t found = places_.size();
  for (size_t p = 0; p < places_.size(); ++p) {
    if (!places_[p].busy() || reads_prompt(p) != reads) continue;
    if (found == places_.size() || places_[p].turn < places_[found].turn) found = p;
  }
  return found;
}

// Waiting requests take free places.
void Engine::admit() {
  for (size_t p = 0; p < places_.size() && !waiting_.empty(); ++p) {
    if (places_[p].busy()) continue;
    Waiting& next = waiting_.front();
    places_[p] = {.id = next.id, .request = std::move(next.request), .tokens = {}};
    places_[p].tokens = places_[p].request.prompt;
    waiting_.pop_front();
  }
}

void Engine::release(size_t place) {
  places_[place] = {};
  state_.truncate(static_cast<int64_t>(place), 0);
}

PassRow Engine::row(size_t place, int64_t count) const {
  const Place& p = places_[place];
  PassRow row{.begin = length(place), .count = count};
  row.tokens =
      std::span(p.tokens).subspan(static_cast<size_t>(row.begin), static_cast<size_t>(count));
  if (p.scored || p.request.logprobs < 0) return row;
  const auto labels = std::span(p.tokens).subspan(static_cast<size_t>(row.begin) + 1);
  row.labels = labels.first(std::min(labels.size(), static_cast<size_t>(count)));
  return row;
}

// Neighbouring places that read their prompts, of one context class, with no more tokens in all than a pass
// takes, and no more padding than tokens.
std::optional<ForwardPassPlan> Engine::plan_prompts() const {
  const size_t first = longest_waiting(true);
  if (first == places_.size()) return std::nullopt;
  const int64_t of_class = places_[first].context_class;
  const auto joins = [&](size_t p) {
    return reads_prompt(p) && places_[p].context_class == of_class;
  };

  ForwardPassPlan plan{.first = static_cast<int64_t>(first)};
  int64_t longest = 0, sum = 0;
  for (size_t p = first; p < places_.size() && joins(p); ++p) {
    const int64_t count = std::min(unread(p), options_.prefill);
    const int64_t padded = std::max(longest, count) * (static_cast<int64_t>(plan.rows.size()) + 1);
    if (p > first && (padded > options_.prefill || padded > 2 * (sum + count))) break;
    longest = std::max(longest, count);
    sum += count;
    plan.rows.push_back(row(p, count));
    plan.context = std::max<int64_t>(plan.context, std::ssize(places_[p].tokens));
  }
  return plan;
}

ForwardPassPlan Engine::plan_next_tokens() const {
  const int64_t of_class = places_[longest_waiting(false)].context_class;
  const auto joins = [&](size_t p) {
    return places_[p].busy() && places_[p].context_class == of_class;
  };
  size_t first = 0, end = places_.size();
  while (!joins(first)) ++first;
  while (!joins(end - 1)) --end;
  ForwardPassPlan plan{.first = static_cast<int64_t>(first)};
  for (size_t p = first; p < end; ++p) {
    plan.rows.push_back(row(p, joins(p) ? 1 : 0));
    if (joins(p)) plan.context = std::max<int64_t>(plan.context, std::ssize(places_[p].tokens));
  }
  return plan;
}

Engine::Updates Engine::run_pass(const ForwardPassPlan& plan) {
  std::vector<int64_t> counts;
  std::vector<size_t> ready;  // places whose next token is drawn from this pass
  std::vector<int64_t> ready_rows;
  for (size_t b = 0; b < plan.rows.size(); ++b) {
    const size_t p = static_cast<size_t>(plan.first) + b;
    const int64_t count = plan.rows[b].count;
    counts.push_back(count);
    if (count > 0) places_[p].turn = ++turn_;
    if (reads_prompt(p)) statistics_.prompt_tokens += count;
    if (count == 0 || count < unread(p)) continue;
    ready.push_back(p);
    ready_rows.push_back(static_cast<int64_t>(b));
  }
  // A request that only wants its prompt's log-probabilities draws nothing.
  const bool draws =
      std::ranges::any_of(ready, [&](size_t p) { return places_[p].request.max_tokens > 0; });
  Updates updates(plan.rows.size());
  for (size_t b = 0; b < plan.rows.size(); ++b)
    updates[b].id = places_[static_cast<size_t>(plan.first) + b].id;
  ForwardPass pass(stage_, runtime_, state_, plan);
  if (plan.has_labels()) {
    const std::vector<double> losses = pass.losses();
    for (size_t b = 0; b < plan.rows.size(); ++b) {
      const auto of_row = std::span(losses).subspan(b * static_cast<size_t>(plan.tokens()));
      for (const double loss : of_row.first(plan.rows[b].labels.size()))
        updates[b].prompt_log_probabilities.push_back(0.0 - loss);
    }
  }
  std::vector<GeneratedToken> drawn(ready.size());
  if (draws) drawn = draw_tokens(ready, pass.last_logits(ready_rows));
  state_.advance(plan.first, counts);
  for (const size_t p : ready) places_[p].scored = true;
  for (size_t r = 0; r < ready.size(); ++r)
    append(ready[r], std::move(drawn[r]), updates[static_cast<size_t>(ready_rows[r])]);
  std::erase_if(updates, [](const RequestUpdate& u) {
    return u.tokens.empty() && u.prompt_log_probabilities.empty() && !u.finish;
  });
  return updates;
}

std::vector<GeneratedToken> Engine::draw_tokens(std::span<const size_t> ready,
                                                const Logits& logits) {
  std::vector<std::vector<int32_t>> labels(ready.size());  // the token, then its alternatives
  runtime_.pool().parallel_for(static_cast<int64_t>(ready.size()), [&](int64_t row, int) {
    const auto r = static_cast<size_t>(row);
    const Place& place = places_[ready[r]];
    const Request& request = place.request;
    const std::span<const float> choices = logits.row(row).first(static_cast<size_t>(vocabulary_));
    labels[r] = {draw(choices, place.tokens, request.sampling, request.number)};
    if (request.logprobs <= 0) return;
    const std::vector<int32_t> most = most_likely(choices, request.logprobs);
    labels[r].insert(labels[r].end(), most.begin(), most.end());
  });
  const std::vector<std::vector<double>> losses = logits.losses(labels);
  std::vector<GeneratedToken> drawn;
  for (size_t r = 0; r < ready.size(); ++r) {
    drawn.push_back({.draw = {labels[r][0], 0.0 - losses[r][0]}});
    for (size_t i = 1; i < labels[r].size(); ++i)
      drawn.back().alternatives.push_back({labels[r][i], 0.0 - losses[r][i]});
  }
  return drawn;
}

void Engine::append(size_t p, GeneratedToken token, RequestUpdate& update) {
  Place& place = places_[p];
  const Request& request = place.request;
  if (request.max_tokens == 0) {
    update.finish = Finish::length;
    release(p);
    return;
  }
  const int32_t id = token.draw.token;
  place.tokens.push_back(id);
  update.tokens.push_back(std::move(token));
  const auto generated = static_cast<int64_t>(place.tokens.size() - request.prompt.size());
  if (std::ranges::find(request.end_tokens, id) != request.end_tokens.end()) {
    update.finish = Finish::end_token;
  } else if (generated >= request.max_tokens) {
    update.finish = Finish::length;
  } else if (static_cast<int64_t>(place.tokens.size()) >
             stage_.model()->max_position_embeddings()) {
    update.finish = Finish::positions;
  }
  if (update.finish) release(p);
}

}  // namespace megatron::inference
