#include "training/plan/meta_run.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/divide.h"
#include "base/machine_limits.h"
#include "data/dataset.h"
#include "plan/known_gpus.h"
#include "training/evaluate.h"
#include "training/sample_text.h"
#include "training/stored_reference.h"
#include "training/weights_norm.h"
#include "training/whole_on_one.h"

namespace megatron::training {

int64_t last_stage(const settings::TrainSettings& s) {
  int64_t last = 0;
  for (const data::BatchSchedule::Stage& stage : s.batch.schedule.stages())
    if (stage.begin < s.batch.total_samples()) last = stage.begin;
  return last;
}

namespace {

constexpr int64_t kPlayed = 4096;  // micro-batches to replay, about, if the batch size grows
constexpr int64_t kThreadBytes = int64_t{6}
                                 << 20;  // per thread: tiles of matrix products and the stack

// A data set of any requested number of sequences without content.
class EmptySamples final : public data::Dataset {
 public:
  // encoder: length of the texts for an encoder; 0: none.
  EmptySamples(int64_t length, bool confined, bool targets, bool examples, int64_t encoder = 0) {
    const auto n = static_cast<size_t>(length);
    sample_ = {.tokens = std::vector<int64_t>(n),
               .labels = std::vector<int64_t>(n),
               .position_ids = std::vector<int64_t>(n),
               .targets = std::vector<double>(targets ? n : 0),
               .loss_mask = std::vector<float>(n, 1),
               .segment_begin = std::vector<int32_t>(confined ? n : 0),
               .sources = std::vector<int32_t>(examples ? n : 0)};
    if (encoder == 0) return;
    const auto m = static_cast<size_t>(encoder);
    sample_.encoder = {.tokens = std::vector<int64_t>(m),
                       .position_ids = std::vector<int64_t>(m),
                       .segment_begin = std::vector<int32_t>(m)};
    sample_.encoder_begin = sample_.encoder_end = std::vector<int32_t>(n);
  }
  int64_t size() const override { return INT64_MAX; }
  void read(int64_t, data::Sample& sample) const override { sample = sample_; }
  void read_filler(data::Sample& sample) const override { sample = sample_; }

 private:
  data::Sample sample_;
};

bool confined(const settings::TrainSettings& s) { return s.data.confines_attention(); }

// True if batches have the scores to reach, the roles of tokens in preferences, or the places of
// answers.
bool has_targets(const settings::TrainSettings& s, const models::Model& model) {
  return model->score_labels() == 1 || s.data.task == "dpo" ||
         model->facts().scored == models::ScoredTokens::span;
}

// Length of the texts that the model's encoder reads; 0: it has no encoder.
int64_t encoder_length(const settings::TrainSettings& s, const models::Model& model) {
  return model->facts().encoder_layers > 0 ? *s.batch.seq_length : 0;
}

// A micro-batch without its tokens: on meta only the first one is read.
corpus::HostBatch empty_batch(const settings::TrainSettings& s, const models::Model& model,
                              const parallel::Ranks& ranks) {
  const int64_t encoder = encoder_length(s, model);
  const std::vector<int32_t> bounds(encoder > 0 ? 1 : 0);
  std::shared_ptr<const corpus::HostBatch> texts;
  if (encoder > 0)
    texts = std::make_shared<const corpus::HostBatch>(
        corpus::HostBatch{.layout = ranks.tokens(*s.batch.micro_batch_size, encoder),
                          .tokens = {0},
                          .positions = {0},
                          .sample_ids = {0},
                          .segment_starts = {0},
                          .segment_ends = {0}});
  return {.layout = ranks.tokens(*s.batch.micro_batch_size, s.batch.labelled_length()),
          .encoder = std::move(texts),
          .tokens = {0},
          .positions = {0},
          .labels = {0},
          .targets = std::vector<double>(has_targets(s, model) ? 1 : 0),
          .loss_mask = {1},
          .sample_ids = {0},
          .segment_starts = std::vector<int32_t>(confined(s) ? 1 : 0),
          .segment_ends = std::vector<int32_t>(confined(s) && model->facts().two_sided ? 1 : 0),
          .encoder_starts = bounds,
          .encoder_ends = bounds,
          .sources = std::vector<int32_t>(s.data.pretrains() ? 0 : 1)};
}

// Bytes of a batch with all of its tokens. A context-parallel rank reads whole sequences, and has
// an index, the bounds of its segment and a source for each token besides the values of its own.
int64_t bytes_with_tokens(const corpus::HostBatch& batch, const models::ModelFacts& model) {
  constexpr int64_t kSetValues = sizeof(std::vector<int32_t>) / 4;  // the classes of a token's text
  const int64_t bounds = (batch.segment_starts.empty() ? 0 : 1) +
                         (batch.segment_ends.empty() ? 0 : 1) + (batch.encoder == nullptr ? 0 : 2),
                sources = batch.sources.empty() ? 0 : 1,
                divided = batch.layout.ranks > 1 ? 1 + bounds + sources : 0,
                targets = batch.targets.empty() ? 0 : 4,  // and reference log-probabilities
      of_encoders = (model.token_types > 0 ? 1 : 0) + (model.pair_head ? 1 : 0) +
                    (model.multi_label ? kSetValues : 0);
  return batch.layout.sequences *
             (batch.layout.length * 4 * (4 + bounds + sources + divided + targets + of_encoders) +
              8) +
         (batch.encoder == nullptr ? 0 : bytes_with_tokens(*batch.encoder, model));
}

// Phases of the run after `begin` iterations and `consumed` samples: at least one, of at least one
// step.
std::vector<BatchPhase> phases_of(const settings::TrainSettings& s, int64_t begin,
                                  int64_t consumed) {
  const data::BatchSchedule& schedule = s.batch.schedule;
  const std::vector<data::BatchSchedule::Stage>& stages = schedule.stages();
  std::vector<BatchPhase> phases;
  int64_t done = begin, samples = consumed;
  for (size_t i = 0; i + 1 < stages.size() && stages[i + 1].begin <= last_stage(s); ++i) {
    if (stages[i + 1].begin <= samples) continue;
    const int64_t batch = schedule.batch(stages[i].begin);
    const int64_t steps = ceil_div(stages[i + 1].begin - samples, batch);
    done += steps;
    samples += steps * batch;
    phases.push_back({schedule.micro_batches(stages[i].begin), done});
  }
  phases.push_back(
      {schedule.micro_batches(last_stage(s)), std::max(*s.batch.train_iters, done + 1)});
  return phases;
}

// Picks evenly spaced phases, including the first and the last, as many as can be replayed quickly.
std::vector<BatchPhase> thinned(const std::vector<BatchPhase>& phases) {
  const int64_t most = std::max<int64_t>(2, kPlayed / phases.back().micro_batches);
  const auto count = static_cast<int64_t>(phases.size());
  if (count <= most) return phases;
  std::vector<BatchPhase> some;
  for (int64_t i = 0; i < most; ++i)
    some.push_back(phases[static_cast<size_t>(i * (count - 1) / (most - 1))]);
  return some;
}

// Bytes of memory above which a rank cannot fit, whatever else its run needs.
int64_t most_memory(const settings::TrainSettings& s) {
  const bool gpu = s.runtime.device_kind() == DeviceKind::cuda;
  return gpu ? 8 * plan::kPlannedGpuMemory : available_memory();
}

ModelLayout planned_layout(const settings::TrainSettings& s, const models::Model& model,
                           double expert_load) {
  ModelLayout layout = model_layout(s, model);
  if (s.runtime.device_kind() != DeviceKind::cuda) layout.ranks.planned_expert_load = expert_load;
  return layout;
}

}  // namespace

MetaRun::MetaRun(const settings::TrainSettings& s, const models::Model& model, int rank,
                 const Task* task, double expert_load)
    : s_(s),
      model_(model),
      task_(task),
      group_(comm::simulated(rank, s.runtime.rank_count())),
      observed_(comm::observed(*group_, recorder_)),
      runtime_({DeviceKind::meta, 0}, s.runtime.threads_per_rank(), s.runtime.device_kind()),
      trained_(model, s.precision.type(), 0, planned_layout(s, model, expert_load), *observed_,
               runtime_, step_options(s, model, task)),
      batch_(empty_batch(s, model, trained_.ranks)) {
  s.runtime.limit_kernels(runtime_.stream());
  if (task != nullptr && task->needs_reference()) {
    if (s.data.precompute_reference) {
      precompute_once();
    } else if (has_base_reference(model, s.data)) {
      reference_ = std::make_unique<BaseReference>(trained_, s.precision.type());
    } else {
      auto second = std::make_unique<ReferenceModel>(trained_, models::without_adapter(model),
                                                     s.precision.type(), s.parallel.placement());
      second->filled();
      reference_ = std::move(second);
    }
    trained_.loss_pass.take_reference(reference_.get());
  }
  trained_.step.begin(s.optimizer.config);
}

// The optimizer's arena grows with the number of micro-batches per step. Without a pipeline, the
// other arenas have their final size after the second step.
void MetaRun::run(int64_t consumed, const corpus::Vocabulary& vocabulary, bool with_samples) {
  const int64_t begin = s_.batch.schedule.iterations_within(consumed);
  const std::vector<BatchPhase> phases = phases_of(s_, begin, consumed);
  const int64_t first = phases.front().micro_batches, last = phases.back().micro_batches;
  const auto expect_all = [&] {
    for (const BatchPhase& phase : phases) trained_.step.expect(phase.micro_batches);
  };
  std::function<void()> write;
  if (s_.run.sample_interval && with_samples && vocabulary.tokenizer != nullptr)
    write = [&] { sample_once(*vocabulary.tokenizer); };
  trained_.step.expect(first);
  const auto [less, more] = samples(last);
  const parallel::PipelineShape& pipeline = trained_.ranks.pipeline();
  if (pipeline.stages > 1 || pipeline.parts > 1) {
    const std::vector<BatchPhase> some = thinned(phases);
    exact_ = some.size() == phases.size();
    run_pipeline(some, begin, expect_all, write);
  } else {
    const auto both = [&](int64_t count) {
      reference_step(count);
      step(count);
    };
    both(std::min(first, less));
    expect_all();
    both(less);
    if (more > less) both(more);
    if (s_.log.log_params_norm) norm_once();
    if (evaluates()) evaluate_once();
    if (write) write();
  }
  const auto all = [&, less = less, more = more](const std::map<int64_t, plan::StepWork>& works) {
    return more == last ? works.at(more)
                        : plan::extended(works.at(less), works.at(more), less, more, last);
  };
  work_ = all(works_);
  if (reference_) plan::add(work_, all(reference_works_));
}

// Finds the arenas' high-water marks by replaying the run's steps and the work between them from
// recorded short steps.
void MetaRun::run_pipeline(const std::vector<BatchPhase>& phases, int64_t begin,
                           const std::function<void()>& expect_all,
                           const std::function<void()>& write) {
  const settings::RunSettings& run = s_.run;
  constexpr auto kNever = std::numeric_limits<int64_t>::max();
  const auto every = [](int64_t interval, int64_t start) {
    return [=](int64_t i) { return round_up(std::max(i, start), interval); };
  };
  ArenaMarks marks(runtime_, {.make = [this](int64_t count) { step(count); },
                              .samples = [this](int64_t all) { return samples(all); }});
  bool seen = true;
  for (const BatchPhase& phase : phases) {
    seen = marks.see_steps(phase.micro_batches, phase.end) && seen;
    if (&phase == &phases.front()) expect_all();
  }
  // Before each step; a pass before the first one leaves nothing behind.
  if (reference_) {
    const auto [less, more] = samples(phases.back().micro_batches);
    reference_step(less);
    seen = marks.see_between([this, more = more] { reference_step(more); }, every(1, 0), false) &&
           seen;
  }
  if (s_.log.log_params_norm)
    seen = marks.see_between([this] { norm_once(); }, every(1, 0), false) && seen;
  if (evaluates()) {
    const auto next = run.eval_interval
                          ? every(*run.eval_interval, run.start_eval_at_iter.value_or(0))
                          : std::function([](int64_t) { return kNever; });
    seen = marks.see_between([this] { evaluate_once(); }, next,
                             run.evaluates_test_set() || run.skip_train) &&
           seen;
  }
  if (write) seen = marks.see_between(write, every(*run.sample_interval, 0), false) && seen;
  if (seen) {
    marks_ = marks.play(begin);
    return;
  }
  exact_ = false;
  for (int i = 0; i < 2; ++i) step(phases.back().micro_batches);
}

bool MetaRun::evaluates() {
  return (s_.run.eval_interval || s_.run.skip_train) && memory().arena_bytes() <= most_memory(s_);
}

double MetaRun::host_seconds() {
  const int64_t all = s_.batch.schedule.micro_batches(last_stage(s_));
  const auto [less, more] = samples(all);
  const double begin = seconds_of_step(less);
  if (more == less) return begin;
  const double end = seconds_of_step(more);
  return end + static_cast<double>(all - more) * std::max(0.0, end - begin) /
                   static_cast<double>(more - less);
}

plan::MemoryUse MetaRun::memory() {
  plan::MemoryUse use;
  for (int i = 0; i < kMemoryClasses; ++i)
    use.arenas[static_cast<size_t>(i)] = runtime_.arena(static_cast<MemoryClass>(i)).high_water();
  if (marks_) {
    // Memory that steps of any number of micro-batches expect is allocated outside the recorded
    // steps.
    const int64_t optimizer = use.arenas[static_cast<size_t>(MemoryClass::optimizer)];
    use.arenas = *marks_;
    use.arenas[static_cast<size_t>(MemoryClass::optimizer)] = optimizer;
  }
  for (int i = 0; i < kMemoryClasses; ++i)
    use.arenas[static_cast<size_t>(i)] +=
        trained_.step.most_own_memory(static_cast<MemoryClass>(i));
  use.host = host_bytes(use);
  return use;
}

parallel::ShortSteps MetaRun::samples(int64_t all) const {
  return parallel::short_steps(trained_.ranks.pipeline(), trained_.ranks.stage(), all);
}

std::span<corpus::HostBatch> MetaRun::batches(int64_t count) {
  while (static_cast<int64_t>(batches_.size()) < count) batches_.push_back(batch_);
  return std::span(batches_).first(static_cast<size_t>(count));
}

void MetaRun::reference_step(int64_t micro_batches) {
  if (!reference_) return;
  recorder_.take();
  runtime_.stream().watch(&recorder_);
  reference_->fill(EmptySamples(0, false, false, true), batches(micro_batches));
  runtime_.stream().watch(nullptr);
  reference_works_[micro_batches] = recorder_.take();
}

// Enough rows to fill every pass; a set may have more or fewer.
void MetaRun::precompute_once() {
  const int64_t rows = (2 * static_cast<int64_t>(trained_.loss_pass.together()) + 1) *
                       *s_.batch.micro_batch_size * trained_.ranks.samples().size();
  const std::vector<int64_t> begins(static_cast<size_t>(rows + 1));
  values_of_rows(trained_.loss_pass, EmptySamples(*s_.batch.seq_length, true, true, true), begins,
                 *s_.batch.micro_batch_size, *s_.batch.seq_length);
}

void MetaRun::step(int64_t micro_batches) {
  recorder_.take();
  runtime_.stream().watch(&recorder_);
  trained_.step.run(batches(micro_batches), {});
  runtime_.stream().watch(nullptr);
  works_[micro_batches] = recorder_.take();
}

double MetaRun::seconds_of_step(int64_t micro_batches) {
  const std::span<corpus::HostBatch> of_step = batches(micro_batches);
  const double begin = now_seconds();
  if (reference_) reference_->fill(EmptySamples(0, false, false, true), of_step);
  trained_.step.run(of_step, {});
  return now_seconds() - begin;
}

void MetaRun::evaluate_once() {
  const int64_t length = s_.batch.labelled_length();
  const EmptySamples samples(length, confined(s_), has_targets(s_, model_), !s_.data.pretrains(),
                             encoder_length(s_, model_));
  // Enough samples to fill every pass; a set may have more or fewer.
  const int64_t enough = (2 * static_cast<int64_t>(trained_.loss_pass.together()) + 1) *
                         s_.eval_micro_batch() * trained_.ranks.samples().size();
  const int64_t count =
      s_.run.full_validation ? enough : std::min(enough, s_.run.eval_iters * s_.eval_batch());
  evaluate(trained_.loss_pass, samples, 0, count, s_.eval_micro_batch(), length);
}

void MetaRun::norm_once() { weights_norm(trained_.shards(), trained_.ranks, runtime_); }

void MetaRun::sample_once(const tokenizers::Tokenizer& tokenizer) {
  on_first_rank(trained_, model_, s_.precision.type(), *observed_, [&](const models::Stage& whole) {
    for (const std::string& prompt : s_.run.sample_prompt)
      sample_text(whole, runtime_, tokenizer, prompt, s_.run.sample_tokens);
  });
}

// Micro-batches prefetched for the next step, those of the current step and one being read; memory
// that threads keep for their products; the copy of this rank's share from which an asynchronous
// save writes.
int64_t MetaRun::host_bytes(const plan::MemoryUse& use) const {
  const data::BatchSchedule& schedule = s_.batch.schedule;
  const int64_t most = schedule.micro_batches(schedule.stages().back().begin);
  const int64_t batches = (2 * most + 3) * bytes_with_tokens(batch_, model_->facts());
  const int64_t threads = s_.runtime.threads_per_rank() * kThreadBytes;
  if (!s_.checkpoint.async_save || !s_.checkpoint.save) return batches + threads;
  const auto of = [&](MemoryClass c) { return use.arenas[static_cast<size_t>(c)]; };
  const int64_t state = s_.checkpoint.save_optimizer ? of(MemoryClass::optimizer) : 0;
  return batches + threads +
         (of(MemoryClass::parameters) + state) / trained_.ranks.replicas().size();
}

}  // namespace megatron::training
