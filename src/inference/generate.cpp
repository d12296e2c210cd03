// B places, T new tokens of a pass each, H hidden, V vocabulary
#include "inference/generate.h"

#include <algorithm>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "inference/pass.h"
#include "nn/sequence_state.h"

namespace megatron::inference {
namespace {

void check(const Request& request, const models::Model& model, int64_t vocabulary) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  MG_CHECK(length > 0, "the prompt of request {} has no tokens; give some text", request.number);
  MG_CHECK(length <= model->max_position_embeddings(),
           "the prompt of request {} has {} tokens, and the model {} positions; shorten it",
           request.number, length, model->max_position_embeddings());
  for (const int32_t id : request.prompt) {
    MG_CHECK(
        id >= 0 && id < model->vocab_size(),
        "the prompt of request {} holds token {}, and the model knows [0, {}): the tokenizer is "
        "not the model's",
        request.number, id, model->vocab_size());
  }
  MG_CHECK(request.max_tokens >= 0, "--max-tokens is {}; it cannot be negative",
           request.max_tokens);
  MG_CHECK(request.logprobs >= -1 && request.logprobs <= vocabulary,
           "--logprobs is {}; there are {} tokens to choose from", request.logprobs, vocabulary);
  request.sampling.check();
}

// A sequence in its place of the batch. Tokens [0, state length) are read; the rest waits.
struct Place {
  size_t request = 0;
  bool busy = false;
  std::vector<int32_t> tokens;  // prompt and text so far
};

class Generator {
 public:
  Generator(const models::Stage& stage, Runtime& runtime, std::span<const Request> requests,
            const GenerateOptions& options, int64_t vocabulary, const nn::SequenceStateShape& shape,
            const std::function<void(size_t, const GeneratedToken&)>& on_token)
      : stage_(stage),
        runtime_(runtime),
        requests_(requests),
        options_(options),
        vocabulary_(vocabulary),
        on_token_(on_token),
        state_(shape, stage.parameters()[0]->parameter.value.dtype(), runtime),
        places_(static_cast<size_t>(shape.sequences)),
        results_(requests.size()) {}

  std::vector<Generation> run() {
    for (admit(); busy(); admit()) {
      const double begin = now_seconds();
      const std::optional<PassPlan> prompts = plan_prompts();
      const int64_t drawn = run_pass(prompts ? *prompts : plan_next_tokens());
      statistics_.generated_tokens += drawn;
      if (!prompts) statistics_.decoded_tokens += drawn;
      (prompts ? statistics_.prefill_seconds : statistics_.decode_seconds) += now_seconds() - begin;
    }
    return std::move(results_);
  }
  const Statistics& statistics() const { return statistics_; }

 private:
  int64_t length(size_t place) const { return state_.lengths()[place]; }
  int64_t unread(size_t place) const {
    return static_cast<int64_t>(places_[place].tokens.size()) - length(place);
  }
  int64_t prompt_length(size_t place) const {
    return static_cast<int64_t>(requests_[places_[place].request].prompt.size());
  }
  bool reads_prompt(size_t place) const {
    return places_[place].busy && length(place) < prompt_length(place);
  }
  bool busy() const { return std::ranges::any_of(places_, &Place::busy); }

  void admit();
  std::optional<PassPlan> plan_prompts() const;
  PassPlan plan_next_tokens() const;
  PassRow row(size_t place, int64_t count) const;
  int64_t run_pass(const PassPlan& plan);
  void keep_prompt_losses(const PassPlan& plan, const std::vector<double>& losses);
  void draw_tokens(std::span<const size_t> ready, const Logits& logits);
  void append(size_t place, GeneratedToken token);

  const models::Stage& stage_;
  Runtime& runtime_;
  std::span<const Request> requests_;
  const GenerateOptions& options_;
  int64_t vocabulary_;
  const std::function<void(size_t, const GeneratedToken&)>& on_token_;
  nn::SequenceState state_;
  std::vector<Place> places_;
  std::vector<Generation> results_;
  size_t next_ = 0;
  Statistics statistics_;
};

// Waiting requests take free places.
void Generator::admit() {
  for (size_t p = 0; p < places_.size(); ++p) {
    if (places_[p].busy || next_ == requests_.size()) continue;
    state_.truncate(static_cast<int64_t>(p), 0);
    places_[p] = {.request = next_, .busy = true, .tokens = requests_[next_].prompt};
    ++next_;
  }
}

PassRow Generator::row(size_t place, int64_t count) const {
  const Place& p = places_[place];
  PassRow row{.begin = length(place), .count = count};
  row.tokens =
      std::span(p.tokens).subspan(static_cast<size_t>(row.begin), static_cast<size_t>(count));
  if (!reads_prompt(place) || requests_[p.request].logprobs < 0) return row;
  const auto labels = std::span(p.tokens).subspan(static_cast<size_t>(row.begin) + 1);
  row.labels = labels.first(std::min(labels.size(), static_cast<size_t>(count)));
  return row;
}

// Neighbouring places that read their prompts, with no more tokens in all than a pass takes, and no
// more padding than tokens.
std::optional<PassPlan> Generator::plan_prompts() const {
  size_t first = 0;
  while (first < places_.size() && !reads_prompt(first)) ++first;
  if (first == places_.size()) return std::nullopt;
  PassPlan plan{.first = static_cast<int64_t>(first)};
  int64_t longest = 0, sum = 0;
  for (size_t p = first; p < places_.size() && reads_prompt(p); ++p) {
    const int64_t count = std::min(unread(p), options_.prefill);
    const int64_t padded = std::max(longest, count) * (static_cast<int64_t>(plan.rows.size()) + 1);
    if (p > first && (padded > options_.prefill || padded > 2 * (sum + count))) break;
    longest = std::max(longest, count);
    sum += count;
    plan.rows.push_back(row(p, count));
  }
  return plan;
}

PassPlan Generator::plan_next_tokens() const {
  size_t first = 0, end = places_.size();
  while (!places_[first].busy) ++first;
  while (!places_[end - 1].busy) --end;
  PassPlan plan{.first = static_cast<int64_t>(first)};
  for (size_t p = first; p < end; ++p) plan.rows.push_back(row(p, places_[p].busy ? 1 : 0));
  return plan;
}

int64_t Generator::run_pass(const PassPlan& plan) {
  std::vector<int64_t> counts;
  std::vector<size_t> ready;  // places whose next token is drawn from this pass
  std::vector<int64_t> ready_rows;
  for (size_t b = 0; b < plan.rows.size(); ++b) {
    const size_t p = static_cast<size_t>(plan.first) + b;
    const int64_t count = plan.rows[b].count;
    counts.push_back(count);
    if (reads_prompt(p)) statistics_.prompt_tokens += count;
    if (count == 0 || count < unread(p)) continue;
    ready.push_back(p);
    ready_rows.push_back(static_cast<int64_t>(b));
  }
  // A request that only wants its prompt's log-probabilities draws nothing.
  const bool draws = std::ranges::any_of(
      ready, [&](size_t p) { return requests_[places_[p].request].max_tokens > 0; });
  Pass pass(stage_, runtime_, state_, plan);
  if (plan.has_labels()) keep_prompt_losses(plan, pass.losses());
  std::optional<Logits> logits;
  if (draws) logits.emplace(pass.last_logits(ready_rows));
  state_.advance(plan.first, counts);
  if (!draws) {
    for (const size_t p : ready) places_[p].busy = false;
    return 0;
  }
  draw_tokens(ready, *logits);
  return static_cast<int64_t>(ready.size());
}

void Generator::keep_prompt_losses(const PassPlan& plan, const std::vector<double>& losses) {
  const int64_t tokens = plan.tokens();
  for (size_t b = 0; b < plan.rows.size(); ++b) {
    Generation& result = results_[places_[static_cast<size_t>(plan.first) + b].request];
    for (size_t t = 0; t < plan.rows[b].labels.size(); ++t) {
      result.prompt_log_probabilities.push_back(0.0 - losses[b * static_cast<size_t>(tokens) + t]);
    }
  }
}

void Generator::draw_tokens(std::span<const size_t> ready, const Logits& logits) {
  std::vector<GeneratedToken> drawn(ready.size());
  std::vector<std::vector<int32_t>> labels(ready.size());  // the token, then its alternatives
  runtime_.pool().parallel_for(static_cast<int64_t>(ready.size()), [&](int64_t row, int) {
    const auto r = static_cast<size_t>(row);
    const Place& place = places_[ready[r]];
    const Request& request = requests_[place.request];
    const std::span<const float> choices = logits.row(row).first(static_cast<size_t>(vocabulary_));
    labels[r] = {draw(choices, place.tokens, request.sampling, request.number)};
    if (request.logprobs <= 0) return;
    const std::vector<int32_t> most = most_likely(choices, request.logprobs);
    labels[r].insert(labels[r].end(), most.begin(), most.end());
  });
  const std::vector<std::vector<double>> losses = logits.losses(labels);
  for (size_t r = 0; r < ready.size(); ++r) {
    GeneratedToken token{.draw = {labels[r][0], 0.0 - losses[r][0]}};
    for (size_t i = 1; i < labels[r].size(); ++i)
      token.alternatives.push_back({labels[r][i], 0.0 - losses[r][i]});
    append(ready[r], std::move(token));
  }
}

void Generator::append(size_t p, GeneratedToken token) {
  Place& place = places_[p];
  const Request& request = requests_[place.request];
  if (request.max_tokens == 0) {
    place.busy = false;
    return;
  }
  Generation& result = results_[place.request];
  const int32_t id = token.draw.token;
  place.tokens.push_back(id);
  result.tokens.push_back(std::move(token));
  if (on_token_) on_token_(place.request, result.tokens.back());
  const auto generated = std::span(place.tokens).subspan(request.prompt.size());
  place.busy = false;
  if (std::ranges::find(request.end_tokens, id) != request.end_tokens.end()) {
    result.finish = Finish::end_token;
  } else if (request.stop && request.stop(generated)) {
    result.finish = Finish::stop;
  } else if (static_cast<int64_t>(generated.size()) >= request.max_tokens) {
    result.finish = Finish::length;
  } else if (static_cast<int64_t>(place.tokens.size()) >
             stage_.model()->max_position_embeddings()) {
    result.finish = Finish::positions;
  } else {
    place.busy = true;
  }
}

}  // namespace

std::vector<Generation> generate(
    const models::Stage& stage, Runtime& runtime, std::span<const Request> requests,
    const GenerateOptions& options,
    const std::function<void(size_t request, const GeneratedToken&)>& on_token) {
  const models::Model& model = stage.model();
  MG_CHECK(options.batch > 0, "--batch-size is {}; it must be positive", options.batch);
  MG_CHECK(options.prefill > 0, "--prefill-tokens is {}; it must be positive", options.prefill);
  const int64_t vocabulary = options.vocabulary > 0
                                 ? std::min(options.vocabulary, model->vocab_size())
                                 : model->vocab_size();
  int64_t capacity = 0;
  for (const Request& request : requests) {
    check(request, model, vocabulary);
    const auto length = static_cast<int64_t>(request.prompt.size());
    capacity = std::max(
        capacity, length + std::min(request.max_tokens, model->max_position_embeddings() - length));
  }
  if (requests.empty()) return {};
  const auto places = std::min(options.batch, static_cast<int64_t>(requests.size()));
  Generator generator(stage, runtime, requests, options, vocabulary,
                      stage.state_shape(places, capacity), on_token);
  std::vector<Generation> results = generator.run();
  if (options.statistics != nullptr) {
    Statistics& all = *options.statistics;
    const Statistics& now = generator.statistics();
    all.prompt_tokens += now.prompt_tokens;
    all.generated_tokens += now.generated_tokens;
    all.decoded_tokens += now.decoded_tokens;
    all.prefill_seconds += now.prefill_seconds;
    all.decode_seconds += now.decode_seconds;
  }
  return results;
}

}  // namespace megatron::inference
