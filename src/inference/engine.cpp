// T tokens of a pass, H hidden, V vocabulary
#include "inference/engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/machine_limits.h"
#include "kernels/attention.h"

namespace megatron::inference {
namespace {

constexpr int64_t kWithoutLimit = std::numeric_limits<int64_t>::max();

int64_t longest(const models::Stage& stage, const EngineOptions& options) {
  options.check();
  const int64_t positions = stage.model()->max_position_embeddings();
  return options.max_length > 0 ? std::min(options.max_length, positions) : positions;
}

// Blocks for so many tokens of every group, but that groups with windows never need more than all requests have at
// once.
std::vector<int64_t> pages_of(const std::vector<nn::CacheGroup>& groups, int64_t blocks,
                              const EngineOptions& options) {
  const bool bounded =
      std::ranges::any_of(groups, [](const nn::CacheGroup& g) { return g.window == 0; });
  std::vector<int64_t> pages;
  for (const nn::CacheGroup& group : groups) {
    int64_t most = kWithoutLimit;
    if (bounded && group.window > 0) {
      const int64_t seen = group.window + options.max_tokens;
      most = options.max_requests * ((seen + options.block_size - 1) / options.block_size + 1);
    }
    pages.push_back(std::min(blocks, most));
  }
  return pages;
}

nn::SequenceStateShape state_shape(const models::Stage& stage, DType type, const Runtime& runtime,
                                   const EngineOptions& options) {
  const int64_t length = longest(stage, options);
  nn::SequenceStateShape shape{
      .layers = stage.layer_caches(), .block_size = options.block_size, .pages = {}};
  const std::vector<nn::CacheGroup> groups = nn::cache_groups(shape.layers);
  const int64_t of_one = (length + options.block_size - 1) / options.block_size;
  const auto with = [&](int64_t blocks) {
    shape.pages = pages_of(groups, blocks, options);
    return shape.elements() * size_of(type);
  };
  int64_t blocks = options.max_requests * of_one, budget = options.cache_bytes;
  // Unasked, half of what memory is left; it need not all be there for one text.
  if (budget == 0 && runtime.device().is_host())
    budget = std::max(available_memory() / 2, with(of_one));
  if (budget > 0) {
    int64_t least = 0;
    for (int64_t step = int64_t{1} << 40; step > 0; step /= 2)
      if (least + step <= blocks && with(least + step) <= budget) least += step;
    MG_CHECK(least >= of_one || groups.empty(),
             "--inference-dynamic-batching-buffer-size-gb is {:.3f}, but the keys and values of "
             "one text of {} tokens "
             "need {:.3f}; give it more, or lower --inference-max-seq-length",
             static_cast<double>(budget) * 1e-9, length, static_cast<double>(with(of_one)) * 1e-9);
    blocks = least;
  }
  with(blocks);
  return shape;
}

BlockCacheOptions cache_options(const nn::SequenceState& state, const EngineOptions& options) {
  BlockCacheOptions of_cache{.block_size = options.block_size,
                             .windows = {},
                             .pages = state.shape().pages,
                             .prefix_caching = options.prefix_caching};
  for (const nn::CacheGroup& group : state.groups()) of_cache.windows.push_back(group.window);
  return of_cache;
}

DType type_of(const models::Stage& stage) { return stage.parameters()[0]->parameter.value.dtype(); }

}  // namespace

void EngineOptions::check() const {
  MG_CHECK(max_requests > 0, "--inference-dynamic-batching-max-requests is {}; it must be positive",
           max_requests);
  MG_CHECK(max_tokens > 0, "--inference-dynamic-batching-max-tokens is {}; it must be positive",
           max_tokens);
  MG_CHECK(vocabulary >= 0, "the vocabulary to sample from has {} ids; give 0 for the model's own",
           vocabulary);
  MG_CHECK(max_length >= 0,
           "--inference-max-seq-length is {}; give 0 for as many tokens as the model has positions",
           max_length);
  MG_CHECK(block_size > 0 && block_size % kernels::kPageKeys == 0,
           "--inference-dynamic-batching-block-size is {}; it must be a multiple of {}", block_size,
           kernels::kPageKeys);
  MG_CHECK(cache_bytes >= 0, "the KV cache is to have {} bytes; give 0 for as many as are needed",
           cache_bytes);
}

int64_t EngineOptions::drawn_vocabulary(const models::Model& model) const {
  return vocabulary > 0 ? std::min(vocabulary, model->vocab_size()) : model->vocab_size();
}

Engine::Engine(const models::Stage& stage, Runtime& runtime, const EngineOptions& options)
    : stage_(stage),
      runtime_(runtime),
      options_(options),
      vocabulary_(options.drawn_vocabulary(stage.model())),
      max_length_(longest(stage, options)),
      state_(state_shape(stage, type_of(stage), runtime, options), type_of(stage), runtime),
      cache_(cache_options(state_, options)),
      scheduler_({.max_requests = options.max_requests,
                  .max_tokens = options.max_tokens,
                  .context_class = [model = stage.model()](
                                       int64_t length) { return model->context_class(length); }},
                 cache_) {}

RequestId Engine::submit(Request request) {
  request.check(stage_.model(), vocabulary_);
  const int64_t longest = request.longest(stage_.model());
  MG_CHECK(longest <= max_length_,
           "request {} may grow to {} tokens (a prompt of {} and --max-tokens {}), but the KV "
           "cache holds {} per request; shorten the prompt or lower --max-tokens",
           request.number, longest, request.prompt.size(), request.max_tokens, max_length_);
  auto sequence = std::make_unique<Sequence>();
  sequence->id = last_ + 1;
  sequence->due = due(request.priority);
  sequence->longest = longest;
  sequence->tokens = request.prompt;
  if (request.grammar != nullptr) sequence->matcher.emplace(request.grammar, request.token_bytes);
  sequence->request = std::move(request);
  scheduler_.add(std::move(sequence));
  return ++last_;
}

// In passes since the engine began: a step of priority is worth kPasses of waiting. Requests of one moment go in order.
uint64_t Engine::due(int64_t priority) const {
  constexpr int64_t kPasses = 256, kMost = 100;
  const int64_t pass = statistics_.steps + (kMost + priority) * kPasses;
  return (static_cast<uint64_t>(pass) << 32) + (last_ + 1) % (uint64_t{1} << 32);
}

bool Engine::cancel(RequestId id) { return scheduler_.remove(id); }

void Engine::weights_changed() { scheduler_.read_anew(); }

Statistics Engine::statistics() const {
  Statistics s = statistics_;
  s.preemptions = scheduler_.preemptions();
  s.cached_tokens = scheduler_.cached_tokens();
  return s;
}

CacheUse Engine::cache_use() const {
  return {.blocks = cache_.pages(), .used = cache_.used(), .found = cache_.found()};
}

int64_t Engine::cached_tokens(std::span<const int32_t> prompt) const {
  return cache_.shared_tokens(
      prompt, static_cast<uint64_t>(stage_.model()->context_class(std::ssize(prompt))));
}

Engine::Updates Engine::step() {
  const double begin = now_seconds();
  const Rows rows = scheduler_.next();
  if (rows.empty()) return {};
  return run_pass(rows, begin);
}

// Labels are those of the tokens whose successors' log-probabilities are still to be given.
ForwardPassPlan Engine::plan(const Rows& rows) const {
  ForwardPassPlan plan;
  for (const auto& [s, count] : rows) {
    PassRow row{.begin = s->read, .count = count};
    const std::span<const int32_t> tokens(s->tokens);
    const auto begin = static_cast<size_t>(s->read);
    row.tokens = tokens.subspan(begin, static_cast<size_t>(count));
    if (s->scored < s->scores() && s->read + count > s->scored)
      row.labels =
          tokens.subspan(begin + 1, static_cast<size_t>(std::min(count, s->scores() - s->read)));
    row.pages = &s->blocks.pages;
    plan.rows.push_back(row);
    plan.context = std::max(plan.context, s->length());
  }
  return plan;
}

void Engine::give_scores(const Rows& rows, const ForwardPassPlan& plan,
                         std::span<const double> losses, Updates& updates) {
  size_t token = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    Sequence& s = *rows[r].sequence;
    // After a preemption some have been given before.
    for (int64_t i = 0; i < std::ssize(plan.rows[r].labels); ++i) {
      if (s.read + i < s.scored) continue;
      updates[r].prompt_log_probabilities.push_back(0.0 - losses[token + static_cast<size_t>(i)]);
      ++s.scored;
    }
    token += static_cast<size_t>(rows[r].count);
  }
}

Engine::Updates Engine::run_pass(const Rows& rows, double begin) {
  std::vector<size_t> ready;  // rows whose next token is drawn from this pass
  std::vector<Sequence*> drawing;
  Updates updates(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    updates[r].id = rows[r].sequence->id;
    if (rows[r].count < rows[r].sequence->unread()) continue;
    ready.push_back(r);
    drawing.push_back(rows[r].sequence);
  }
  const ForwardPassPlan plan = this->plan(rows);
  ForwardPass pass(stage_, runtime_, state_, plan);
  if (plan.has_labels()) give_scores(rows, plan, pass.losses(), updates);
  // A request that only wants its prompt's log-probabilities draws nothing.
  const bool draws =
      std::ranges::any_of(drawing, [](const Sequence* s) { return s->request.max_tokens > 0; });
  std::vector<Drawn> drawn(ready.size());
  if (draws) drawn = draw_tokens(drawing, pass.last_logits(ready));
  bool decodes = true;
  for (const auto& [s, count] : rows) {
    if (s->read < std::ssize(s->request.prompt)) statistics_.prompt_tokens += count;
    decodes = decodes && count == 1 && s->length() > std::ssize(s->request.prompt);
  }
  scheduler_.advance(rows);
  int64_t tokens = 0;
  for (size_t i = 0; i < ready.size(); ++i) {
    append(*drawing[i], std::move(drawn[i]), updates[ready[i]]);
    tokens += std::ssize(updates[ready[i]].tokens);
  }
  statistics_.generated_tokens += tokens;
  if (decodes) statistics_.decoded_tokens += tokens;
  (decodes ? statistics_.decode_seconds : statistics_.prefill_seconds) += now_seconds() - begin;
  ++statistics_.steps;
  std::erase_if(updates, [](const RequestUpdate& u) {
    return u.tokens.empty() && u.prompt_log_probabilities.empty() && !u.finish;
  });
  return updates;
}

// The ids that the grammar and, at an end, the end tokens allow.
int32_t Engine::draw_token(Sequence& s, std::span<const float> logits) const {
  const Request& request = s.request;
  std::vector<uint64_t> allowed;
  if (s.matcher) {
    allowed.resize(std::max(request.token_bytes->words(), (logits.size() + 63) / 64));
    bool complete = false;
    s.matcher->allowed(allowed, complete);
    if (complete) {
      for (const int32_t id : request.end_tokens) {
        const auto i = static_cast<size_t>(id);
        if (i < logits.size()) allowed[i / 64] |= uint64_t{1} << (i % 64);
      }
    }
  }
  const TextSoFar text{.tokens = s.tokens,
                       .prompt = request.prompt.size(),
                       .end_tokens = request.end_tokens,
                       .allowed = allowed};
  return draw(logits, text, request.sampling, request.number);
}

std::vector<Engine::Drawn> Engine::draw_tokens(std::span<Sequence* const> ready,
                                               const Logits& logits) {
  std::vector<Drawn> drawn(ready.size());
  std::vector<std::vector<int32_t>> labels(ready.size());  // the token, then its alternatives
  runtime_.pool().parallel_for(static_cast<int64_t>(ready.size()), [&](int64_t row, int) {
    const auto r = static_cast<size_t>(row);
    const Request& request = ready[r]->request;
    const std::span<const float> choices = logits.row(row).first(static_cast<size_t>(vocabulary_));
    try {
      labels[r] = {draw_token(*ready[r], choices)};
    } catch (const Error& error) {
      drawn[r].error = error.what();
      return;
    }
    if (request.logprobs <= 0) return;
    const std::vector<int32_t> most = most_likely(choices, request.logprobs);
    labels[r].insert(labels[r].end(), most.begin(), most.end());
  });
  const std::vector<std::vector<double>> losses = logits.losses(labels);
  for (size_t r = 0; r < ready.size(); ++r) {
    if (labels[r].empty()) continue;
    drawn[r].token.draw = {labels[r][0], 0.0 - losses[r][0]};
    for (size_t i = 1; i < labels[r].size(); ++i)
      drawn[r].token.alternatives.push_back({labels[r][i], 0.0 - losses[r][i]});
  }
  return drawn;
}

// A finished sequence is gone afterwards.
void Engine::append(Sequence& s, Drawn drawn, RequestUpdate& update) {
  const Request& request = s.request;
  if (request.max_tokens == 0) {
    update.finish = Finish::length;
  } else if (!drawn.error.empty()) {
    update.finish = Finish::failed;
    update.error = std::move(drawn.error);
  } else {
    const int32_t id = drawn.token.draw.token;
    s.tokens.push_back(id);
    update.tokens.push_back(std::move(drawn.token));
    update.finish = finish_of(s, id);
  }
  if (update.finish) scheduler_.remove(s.id);
}

std::optional<Finish> Engine::finish_of(Sequence& s, int32_t id) const {
  const Request& request = s.request;
  if (std::ranges::find(request.end_tokens, id) != request.end_tokens.end())
    return Finish::end_token;
  if (s.matcher) {
    s.matcher->accept(id);
    if (s.matcher->must_end()) return Finish::complete;
  }
  if (s.length() - std::ssize(request.prompt) >= request.max_tokens) return Finish::length;
  if (s.length() > stage_.model()->max_position_embeddings()) return Finish::positions;
  return {};
}

}  // namespace megatron::inference
