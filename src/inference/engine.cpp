#include "inference/engine.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "comm/texts.h"
#include "inference/draw_tokens.h"
#include "inference/embedding.h"
#include "kernels/sample.h"

namespace megatron::inference {
namespace {

DType type_of(const models::Stage& stage) {
  MG_CHECK(!stage.parameters().empty(),
           "a pipeline stage that starts at layer {} has no parameters; use a smaller "
           "--pipeline-model-parallel-size",
           stage.part().first_layer);
  return stage.parameters()[0]->parameter.value.dtype();
}

// Allocates the state on all ranks, or fails on all.
nn::SequenceState make_state(const nn::SequenceStateShape& shape, DType type, Runtime& runtime,
                             const EngineRanks& ranks, EngineLeader* leader) {
  if (ranks.all == nullptr) return {shape, type, runtime};
  std::optional<nn::SequenceState> state;
  std::string error;
  try {
    state.emplace(shape, type, runtime);
  } catch (const std::exception& e) {
    error = e.what();
  }
  const auto errors = comm::gather_texts(*ranks.all, *ranks.host, error, "engine.cache");
  for (const std::string& text : errors) {
    if (text.empty()) continue;
    if (leader != nullptr) leader->made();
    throw EngineRefused(text);
  }
  return std::move(*state);
}

// Rank of a token among the ids below logits.size(), in the order of most_likely(): 1 is the most
// likely.
int64_t rank_of(int32_t token, std::span<const float> logits) {
  const float own = logits[static_cast<size_t>(token)];
  int64_t before = 0;
  for (size_t id = 0; id < logits.size(); ++id)
    before += logits[id] > own || (logits[id] == own && id < static_cast<size_t>(token)) ? 1 : 0;
  return before + 1;
}

// given: tokens that the text follows.
BeamSearch search_of(const Request& request, int64_t given, const models::Model& model) {
  // The last token may be drawn at the model's last position.
  const int64_t positions = model->context_length() + 1 - given;
  return {*request.beams,
          {.end_tokens = request.end_tokens,
           .min_tokens = request.sampling.min_tokens,
           .max_tokens = std::min(request.max_tokens, positions),
           .at_most = positions < request.max_tokens ? Finish::positions : Finish::length,
           .alternatives = std::max<int64_t>(request.logprobs, 0)}};
}

// The rows of a step by passes: those that share one, and those of each other adapter.
std::vector<std::vector<ScheduledRow>> rows_of_passes(const std::vector<ScheduledRow>& rows) {
  std::map<uint64_t, std::vector<ScheduledRow>> passes;
  for (const ScheduledRow& row : rows) {
    const Request& request = row.sequence->request;
    const bool shares = request.adapter == nullptr || request.adapter->shares_passes();
    passes[shares ? 0 : request.adapter_number()].push_back(row);
  }
  std::vector<std::vector<ScheduledRow>> of_passes;
  for (auto& [adapter, of_one] : passes) of_passes.push_back(std::move(of_one));
  return of_passes;
}

}  // namespace

Engine::Engine(const models::Stage& stage, Runtime& runtime, const EngineOptions& options,
               const EngineRanks& ranks)
    : stage_(stage),
      runtime_(runtime),
      options_(options),
      ranks_(ranks),
      leader_(ranks.leads() ? std::make_unique<EngineLeader>(options, ranks) : nullptr),
      vocabulary_(options.drawn_vocabulary(stage.model())),
      max_length_(options.longest_text(stage.model())),
      shape_(cache_shape(stage, type_of(stage), runtime, options, ranks)),
      state_(make_state(shape_.state, type_of(stage), runtime, ranks, leader_.get())),
      cache_(shape_.blocks),
      texts_(shape_.encoded.windows.empty() ? std::nullopt
                                            : std::make_optional<EncoderTexts>(shape_.encoded)),
      scheduler_({.max_requests = is_encoder() ? std::max(options.max_requests, options.max_tokens)
                                               : options.max_requests,
                  .max_tokens = options.max_tokens,
                  .whole_texts = is_encoder(),
                  .context_class = [model = stage.model()](
                                       int64_t length) { return model->context_class(length); }},
                 cache_, texts_ ? &*texts_ : nullptr) {
  MG_ASSERT(!ranks.draws() || stage.part().head);
  MG_ASSERT(ranks.all == nullptr || runtime.device().has_data());
  if (runtime.stream().target().kind == DeviceKind::cuda && ranks.stages == nullptr &&
      stage.model()->score_labels() == 0 && !is_encoder()) {
    const bool records = options.cuda_graphs > 0, draws = ranks.draws();
    decode_passes_.emplace(
        stage, runtime, state_,
        DecodePassOptions{.max_rows = std::min(options.max_requests, options.max_tokens),
                          .longest = max_length_,
                          .row_counts = records ? options.cuda_graphs : EngineOptions::kCudaGraphs,
                          .record = records,
                          .choices = draws && vocabulary_ <= kernels::kMaxSampled ? vocabulary_ : 0,
                          .tensor = ranks.tensor});
  }
  if (leader_ != nullptr) leader_->made();
}

// The model for passes with rows of an adapter.
const models::Stage& Engine::stage_of(const Adapter* adapter) {
  if (adapter == nullptr || adapter->shares_passes()) return stage_;
  AdaptedStage& adapted = adapted_stages_[adapter->number()];
  if (adapted.stage == nullptr) {
    adapted = {adapter->weak_from_this(), adapter->over(stage_, runtime_, ranks_.modules)};
    std::erase_if(adapted_stages_, [](const auto& one) { return one.second.adapter.expired(); });
  }
  return *adapted_stages_.at(adapter->number()).stage;
}

RequestId Engine::submit(Request request) {
  stage_of(request.adapter.get());  // throws before the request is accepted
  request.check(stage_.model(), vocabulary_);
  const int64_t longest = request.longest(stage_.model());
  MG_CHECK(request.longest_cached(stage_.model()) <= max_length_,
           "request {} may grow to {} tokens (a prompt of {} and --max-tokens {}), but the KV "
           "cache has room for {} per request; shorten the prompt or lower --max-tokens",
           request.number, request.longest_cached(stage_.model()), request.prompt.size(),
           request.max_tokens, max_length_);
  auto sequence = std::make_unique<Sequence>();
  sequence->id = last_ + 1;
  sequence->due = {due_pass(request.priority), sequence->id};
  sequence->longest = longest;
  sequence->tokens = request.given(stage_.model()->facts());
  sequence->given = sequence->length();
  sequence->scored = request.first_scored - 1;
  if (request.grammar != nullptr) sequence->matcher.emplace(request.grammar, request.token_bytes);
  if (request.beams) {
    check_beams(request, sequence->length(), longest);
    sequence->beams =
        std::make_unique<BeamGroup>(search_of(request, sequence->length(), stage_.model()));
  }
  sequence->request = std::move(request);
  if (leader_ != nullptr) leader_->add(sequence->request);
  scheduler_.add(std::move(sequence));
  return ++last_;
}

// Throws Error if the beams can never run together.
void Engine::check_beams(const Request& request, int64_t given, int64_t longest) const {
  const int64_t beams = request.width();
  MG_CHECK(beams <= options_.max_requests,
           "{} beams are asked for, but at most {} texts run at once; use fewer beams, or raise "
           "--inference-dynamic-batching-max-requests",
           beams, options_.max_requests);
  for (size_t g = 0; g < cache_.groups(); ++g) {
    const int64_t needed = cache_.blocks_of_forks(g, beams, given, longest, options_.max_tokens);
    MG_CHECK(needed <= cache_.pages(g),
             "{} beams of up to {} tokens need {} blocks of {} tokens in the KV cache, but it has "
             "{}; use fewer beams or a lower --max-tokens, or raise "
             "--inference-dynamic-batching-buffer-size-gb",
             beams, longest, needed, cache_.block_size(), cache_.pages(g));
  }
}

void Engine::copy_pages(std::span<const PageCopy> copies) {
  for (size_t g = 0; g < shape_.groups.size(); ++g) {
    if (state_.groups()[g].of_encoder) continue;  // beams share an encoder's text
    std::vector<int32_t> from, to;
    for (const PageCopy& copy : copies) {
      if (copy.group != shape_.groups[g]) continue;
      from.push_back(copy.from);
      to.push_back(copy.to);
    }
    if (!from.empty()) state_.copy_pages(g, from, to);
  }
}

// Pass numbers count from the engine's first pass; one level of priority is worth kPasses of
// waiting.
int64_t Engine::due_pass(int64_t priority) const {
  constexpr int64_t kPasses = 256;
  return statistics_.steps + priority * kPasses;
}

bool Engine::cancel(RequestId id) {
  const std::unique_ptr<Sequence> removed = scheduler_.remove(id);
  if (removed == nullptr) return false;
  if (leader_ != nullptr) {
    leader_->add(Cancellation{id, std::move(removed->request.adapter)});
    if (idle()) leader_->settle();
  }
  return true;
}

void Engine::weights_changed() {
  if (leader_ != nullptr) leader_->add(WeightsChanged{});
  scheduler_.read_anew();
  adapted_stages_.clear();
  if (decode_passes_) decode_passes_->forget();
}

Statistics Engine::statistics() const {
  Statistics s = statistics_;
  s.preemptions = scheduler_.preemptions();
  s.cached_tokens = scheduler_.cached_tokens();
  if (decode_passes_) {
    const DecodePassCounts counts = decode_passes_->counts();
    s.graphs_recorded = counts.recorded;
    s.graph_launches = counts.launched;
    s.graph_bytes = counts.bytes;
  }
  return s;
}

CacheUse Engine::cache_use() const {
  return {.blocks = cache_.pages() + (texts_ ? texts_->pages() : 0),
          .used = cache_.used() + (texts_ ? texts_->used() : 0),
          .found = cache_.found(),
          .bytes = shape_.state.bytes(type_of(stage_))};
}

int64_t Engine::cached_tokens(std::span<const int32_t> prompt, uint64_t adapter) const {
  if (texts_) return 0;
  return cache_.shared_tokens(
      prompt, cache_root(stage_.model()->context_class(std::ssize(prompt)), adapter));
}

Engine::Updates Engine::step() {
  if (idle()) return {};
  double begin = now_seconds();
  try {
    if (leader_ != nullptr) leader_->step();
    Updates updates;
    const Rows all = scheduler_.next();
    copy_pages(scheduler_.take_copies());
    for (const Rows& rows : rows_of_passes(all)) {
      Updates more = run_pass(rows, begin);
      updates.insert(updates.end(), std::make_move_iterator(more.begin()),
                     std::make_move_iterator(more.end()));
      begin = now_seconds();
    }
    if (leader_ != nullptr) leader_->passed();
    return updates;
  } catch (...) {
    if (ranks_.all != nullptr) ranks_.all->give_up();
    throw;
  }
}

std::vector<float> Engine::embedding(std::span<const int32_t> tokens, const Adapter* adapter,
                                     EmbeddingForm form) {
  MG_CHECK(!texts_,
           "the model is an encoder-decoder ({}), which gives no embeddings of texts; use an "
           "encoder or a decoder",
           stage_.model()->family());
  MG_ASSERT(!is_encoder());
  std::vector<double> sum;
  const models::Stage& stage = stage_of(adapter);  // throws before the other ranks begin
  try {
    if (leader_ != nullptr) leader_->embed(tokens, adapter, form);
    sum = sum_of_hidden(stage, runtime_, tokens, ranks_.stages, adapter, form.pooling);
  } catch (...) {
    if (ranks_.all != nullptr) ranks_.all->give_up();
    throw;
  }
  return ranks_.draws() ? embedding_of(sum, tokens.size(), form) : std::vector<float>();
}

// Labels are those of the tokens whose successors' log-probabilities are still to be given.
ForwardPassPlan Engine::plan(const Rows& rows) const {
  ForwardPassPlan plan{
      .rows = {}, .groups = shape_.groups, .whole_texts = is_encoder(), .context = 0};
  for (const auto& [s, count] : rows) {
    PassRow row{.begin = s->read, .count = count};
    const std::span<const int32_t> tokens(s->tokens);
    const auto begin = static_cast<size_t>(s->read);
    row.tokens = tokens.subspan(begin, static_cast<size_t>(count));
    if (s->scored < s->scores() && s->read + count > s->scored)
      row.labels =
          tokens.subspan(begin + 1, static_cast<size_t>(std::min(count, s->scores() - s->read)));
    row.pages = &s->blocks.pages;
    row.adapter = s->request.adapter.get();
    row.expert_choices = s->request.expert_choices;
    row.token_types = s->request.token_types;
    row.encoder = s->encoder.get();
    plan.rows.push_back(row);
    plan.context = std::max(plan.context, s->context());
    if (row.encoder != nullptr && !row.encoder->read &&
        std::ranges::find(plan.texts, row.encoder) == plan.texts.end())
      plan.texts.push_back(row.encoder);
  }
  std::ranges::stable_sort(plan.texts, {}, &EncoderText::length);
  return plan;
}

void Engine::give_scores(const Rows& rows, const ForwardPassPlan& plan,
                         std::span<const double> losses, Updates& updates) {
  size_t token = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    Sequence& s = *rows[r].sequence;
    // After a preemption, some have been reported before.
    for (int64_t i = 0; i < std::ssize(plan.rows[r].labels); ++i) {
      if (s.read + i < s.scored) continue;
      updates[r].prompt_log_probabilities.push_back(0.0 - losses[token + static_cast<size_t>(i)]);
      ++s.scored;
    }
    token += static_cast<size_t>(rows[r].count);
  }
}

void Engine::give_experts(const Rows& rows, std::span<const int32_t> choices, Updates& updates) {
  int64_t tokens = 0;
  for (const ScheduledRow& row : rows) tokens += row.count;
  const auto width = std::ssize(choices) / tokens;  // of one token
  size_t token = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    Sequence& s = *rows[r].sequence;
    const int64_t count = rows[r].count;
    // After a preemption, some have been reported before.
    const int64_t known = std::clamp<int64_t>(s.routed - s.read, 0, count);
    if (s.request.expert_choices) {
      const auto given =
          choices.subspan((token + static_cast<size_t>(known)) * static_cast<size_t>(width),
                          static_cast<size_t>((count - known) * width));
      updates[r].expert_choices.assign(given.begin(), given.end());
      s.routed = std::max(s.routed, s.read + count);
    }
    token += static_cast<size_t>(count);
  }
}

// Call before give_scores(), which counts the reported scores.
std::vector<Engine::WantedAlternatives> Engine::wanted_alternatives(
    const Rows& rows, const ForwardPassPlan& plan) const {
  std::vector<WantedAlternatives> wanted;
  int64_t begin = 0;  // index of its first token in the pass
  for (size_t r = 0; r < rows.size(); begin += rows[r++].count) {
    const Sequence& s = *rows[r].sequence;
    if (s.request.prompt_alternatives < 0 || is_encoder()) continue;
    for (int64_t i = std::max<int64_t>(s.scored - s.read, 0); i < std::ssize(plan.rows[r].labels);
         ++i)
      wanted.push_back({.row = r,
                        .token = static_cast<int32_t>(begin + i),
                        .label = plan.rows[r].labels[static_cast<size_t>(i)],
                        .count = s.request.prompt_alternatives});
  }
  return wanted;
}

std::vector<PromptAlternatives> Engine::alternatives_of(
    ForwardPass& pass, std::span<const WantedAlternatives> wanted) {
  constexpr size_t kTokens = 64;  // tokens whose logits are in memory at once
  std::vector<PromptAlternatives> alternatives(wanted.size());
  for (size_t at = 0; at < wanted.size(); at += kTokens) {
    const auto part = wanted.subspan(at, std::min(kTokens, wanted.size() - at));
    std::vector<int32_t> tokens;
    for (const WantedAlternatives& w : part) tokens.push_back(w.token);
    const Logits logits = pass.logits_after(tokens);
    std::vector<std::vector<int32_t>> most(part.size());
    runtime_.pool().parallel_for(std::ssize(part), [&](int64_t n, int) {
      const auto i = static_cast<size_t>(n);
      const auto row = logits.row(i).first(static_cast<size_t>(vocabulary_));
      most[i] = most_likely(row, part[i].count);
      if (part[i].label < vocabulary_) alternatives[at + i].rank = rank_of(part[i].label, row);
    });
    const std::vector<std::vector<double>> losses = logits.losses(most);
    for (size_t i = 0; i < part.size(); ++i) {
      std::vector<Draw>& given = alternatives[at + i].likely;
      for (size_t k = 0; k < most[i].size(); ++k) given.push_back({most[i][k], 0.0 - losses[i][k]});
    }
  }
  return alternatives;
}

Engine::Updates Engine::run_pass(const Rows& rows, double begin) {
  Drawing drawing;
  Updates updates(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    const Sequence& s = *rows[r].sequence;
    updates[r].id = s.id;
    if (rows[r].count < s.unread()) continue;
    if (s.beams != nullptr && s.beams->search.begun()) continue;  // beams continue from its prompt
    drawing.rows.push_back(r);
    drawing.sequences.push_back(rows[r].sequence);
  }
  const ForwardPassPlan plan = this->plan(rows);
  const double pass_begin = now_seconds();
  const std::vector<WantedAlternatives> wanted = wanted_alternatives(rows, plan);
  PassResults results = results_of(plan, wanted, drawing);
  if (is_encoder()) give_texts(drawing, results, updates);
  for (size_t i = 0; i < wanted.size(); ++i)
    updates[wanted[i].row].prompt_alternatives.push_back(std::move(results.prompt_alternatives[i]));
  if (plan.has_labels()) give_scores(rows, plan, results.losses, updates);
  if (plan.wants_experts()) give_experts(rows, results.expert_choices, updates);
  results.drawn.resize(drawing.rows.size());
  results.scores.resize(drawing.rows.size());
  const double pass_end = now_seconds();
  bool decodes = plan.texts.empty();
  statistics_.prompt_tokens += plan.encoder_tokens();
  for (const auto& [s, count] : rows) {
    if (s->read < s->given && !texts_) statistics_.prompt_tokens += count;
    decodes = decodes && count == 1 && s->length() > s->given;
  }
  scheduler_.advance(rows);
  int64_t tokens = 0;
  for (size_t i = 0; i < drawing.rows.size(); ++i) {
    RequestUpdate& update = updates[drawing.rows[i]];
    update.scores = std::move(results.scores[i]);
    append(*drawing.sequences[i], std::move(results.drawn[i]), update);
    tokens += std::ssize(update.tokens);
  }
  statistics_.generated_tokens += tokens;
  if (decodes) statistics_.decoded_tokens += tokens;
  const double end = now_seconds();
  (decodes ? statistics_.decode_seconds : statistics_.prefill_seconds) += end - begin;
  statistics_.between_seconds += end - begin - (pass_end - pass_begin);
  ++statistics_.steps;
  std::erase_if(updates, [](const RequestUpdate& u) {
    return u.tokens.empty() && u.prompt_log_probabilities.empty() && u.expert_choices.empty() &&
           !u.finish;
  });
  return updates;
}

bool Engine::Drawing::any() const {
  return std::ranges::any_of(sequences,
                             [](const Sequence* s) { return s->request.max_tokens > 0; }) ||
         scores();
}

bool Engine::Drawing::scores() const {
  return !sequences.empty() && sequences[0]->request.scores;  // all requests of a model do, or none
}

// True if the pass is run by decode_passes_.
bool Engine::decodes(const ForwardPassPlan& plan, const Drawing& drawing) const {
  return decode_passes_ && drawing.any() && drawing.rows.size() == plan.rows.size() &&
         !plan.has_labels() && plan.texts.empty() &&
         std::ranges::all_of(plan.rows, [](const PassRow& row) {
           const bool shared = row.adapter == nullptr || row.adapter->shares_passes();
           return row.count == 1 && shared && !row.expert_choices;
         });
}

PassResults Engine::results_of(const ForwardPassPlan& plan,
                               std::span<const WantedAlternatives> wanted, const Drawing& drawing) {
  PassResults results;
  if (decodes(plan, drawing)) decode(plan, drawing, results);
  else run_forward(plan, wanted, drawing, results);
  if (ranks_.all != nullptr &&
      (drawing.any() || plan.has_labels() || plan.wants_experts() || is_encoder()))
    share(results, ranks_, runtime_.stream());
  return results;
}

void Engine::decode(const ForwardPassPlan& plan, const Drawing& drawing, PassResults& results) {
  std::vector<double> rules;
  if (ranks_.draws()) rules = sampling_rules(drawing.sequences, vocabulary_);
  decode_passes_->run(plan, rules);
  Logits logits(decode_passes_->logits(), runtime_);
  if (ranks_.draws()) results.drawn = draw(drawing, decode_passes_->draws(), logits);
}

// Stages with the output layer run it together, where tensor parallelism divides it.
void Engine::run_forward(const ForwardPassPlan& plan, std::span<const WantedAlternatives> wanted,
                         const Drawing& drawing, PassResults& results) {
  ForwardPass pass(stage_of(plan.rows[0].adapter), runtime_, state_, plan, ranks_.stages);
  if (!stage_.part().head) return;
  if (is_encoder()) return run_texts(pass, drawing, results);
  results.prompt_alternatives = alternatives_of(pass, wanted);
  if (plan.has_labels()) results.losses = pass.losses();
  if (plan.wants_experts()) results.expert_choices = pass.expert_choices();
  if (!drawing.any()) return;
  Logits logits = pass.last_logits(drawing.rows);
  if (!ranks_.draws()) return;
  if (drawing.scores()) {
    results.scores = logits.rows();
    return;
  }
  const double begin = now_seconds();
  DeviceDraws on_device;
  if (runtime_.device().kind == DeviceKind::cuda)
    on_device = logits.draw(sampling_rules(drawing.sequences, vocabulary_), vocabulary_);
  statistics_.draw_seconds += now_seconds() - begin;
  results.drawn = draw(drawing, on_device, logits);
}

std::vector<DrawnToken> Engine::draw(const Drawing& drawing, const DeviceDraws& on_device,
                                     Logits& logits) {
  const double begin = now_seconds();
  std::vector<DrawnToken> drawn =
      draw_tokens(drawing.sequences, on_device, logits, vocabulary_, stage_.model(), runtime_);
  statistics_.draw_seconds += now_seconds() - begin;
  return drawn;
}

// The search makes a step once all beams have been read. A finished sequence is gone afterwards,
// with its beams.
void Engine::append_to_beam(Sequence& beam, DrawnToken drawn, RequestUpdate& update) {
  Sequence& s = beam.of_request();
  BeamGroup& group = *s.beams;
  group.next[beam.beam] = std::move(drawn.token.alternatives);
  if (!drawn.error.empty()) group.error = std::move(drawn.error);
  if (--group.missing > 0) return;
  if (!group.error.empty()) {
    update.finish = Finish::failed;
    update.error = group.error;
    scheduler_.remove(s.id);
    return;
  }
  group.search.step(group.next);
  group.searched = true;
  if (!group.search.done()) {
    update.tokens = group.search.common(group.given);
    group.given += std::ssize(update.tokens);
    return;
  }
  update.beams = group.search.results();
  if (update.beams.empty()) {
    update.finish = Finish::failed;
    update.error = "the model gives every next token probability 0";
  } else {
    const BeamResult& best = update.beams[0];
    update.tokens.assign(best.tokens.begin() + group.given, best.tokens.end());
    update.finish = best.finish;
    for (size_t i = 1; i < update.beams.size(); ++i)  // the caller counts those of the best text
      statistics_.generated_tokens += std::ssize(update.beams[i].tokens);
  }
  scheduler_.remove(s.id);
}

// A finished sequence is gone afterwards.
void Engine::append(Sequence& s, DrawnToken drawn, RequestUpdate& update) {
  const Request& request = s.request;
  if (request.scores || is_encoder()) {
    const bool finite =
        std::ranges::all_of(update.scores, [](float v) { return std::isfinite(v); });
    if (!finite) update.error = "the scores of this text are NaN or infinite";
    update.finish = update.error.empty() ? Finish::scored : Finish::failed;
  } else if (request.beams) {
    return append_to_beam(s, std::move(drawn), update);
  } else if (request.max_tokens == 0) {
    update.finish = Finish::length;
  } else if (!drawn.error.empty()) {
    update.finish = Finish::failed;
    update.error = std::move(drawn.error);
    update.by_grammar = drawn.by_grammar;
  } else {
    s.tokens.push_back(drawn.token.draw.token);
    update.tokens.push_back(std::move(drawn.token));
    update.finish = drawn.finish;
  }
  if (update.finish) scheduler_.remove(s.id);
}

}  // namespace megatron::inference
