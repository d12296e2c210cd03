#include "training/meta_run.h"

#include <algorithm>

#include "base/clock.h"
#include "base/machine_memory.h"
#include "data/dataset.h"
#include "optim/norm_slots.h"
#include "plan/known_gpus.h"
#include "training/evaluate.h"
#include "training/whole_on_one.h"

namespace megatron::training {
namespace {

constexpr int64_t kWholeSteps = 64;                 // micro-batches
constexpr int64_t kThreadBytes = int64_t{6} << 20;  // tiles of products, stack

// Sequences without content, as many as are asked for.
class EmptySamples final : public data::Dataset {
 public:
  EmptySamples(int64_t length, bool confined) {
    const auto n = static_cast<size_t>(length);
    sample_ = {.tokens = std::vector<int64_t>(n),
               .labels = std::vector<int64_t>(n),
               .position_ids = std::vector<int64_t>(n),
               .loss_mask = std::vector<float>(n, 1),
               .segment_begin = std::vector<int32_t>(confined ? n : 0)};
  }
  int64_t size() const override { return INT64_MAX; }
  void read(int64_t, data::Sample& sample) const override { sample = sample_; }
  void read_filler(data::Sample& sample) const override { sample = sample_; }

 private:
  data::Sample sample_;
};

bool confined(const TrainSettings& s) {
  return s.data.reset_attention_mask || s.data.inter_document_masking;
}

// A micro-batch without its tokens: on meta nobody reads more than the first.
HostBatch empty_batch(const TrainSettings& s) {
  return {.sequences = *s.batch.micro_batch_size,
          .length = *s.batch.seq_length,
          .tokens = {0},
          .positions = {0},
          .labels = {0},
          .loss_mask = {1},
          .samples = {0},
          .segment_begins = std::vector<int32_t>(confined(s) ? 1 : 0)};
}

// Of one with its tokens.
int64_t batch_bytes(const TrainSettings& s) {
  const int64_t tokens = *s.batch.micro_batch_size * *s.batch.seq_length;
  return tokens * 4 * (confined(s) ? 5 : 4) + *s.batch.micro_batch_size * 8;
}

// Micro-batches of a step, one number a stage of the schedule, after `consumed` samples.
std::vector<int64_t> micro_batch_counts(const TrainSettings& s, int64_t consumed) {
  const data::BatchSchedule& schedule = s.batch.schedule;
  std::vector<int64_t> counts = {schedule.micro_batches(consumed)};
  for (const data::BatchSchedule::Stage& stage : schedule.stages())
    if (stage.begin > consumed && stage.begin <= last_stage(s))
      counts.push_back(schedule.micro_batches(stage.begin));
  return counts;
}

// Beyond this no rank fits, whatever the rest of its run needs.
int64_t most_memory(const TrainSettings& s) {
  const bool gpu = s.runtime.device_kind() == DeviceKind::cuda;
  return gpu ? 8 * plan::kPlannedGpuMemory : machine_memory();
}

StepOptions options(const TrainSettings& s, const models::GptConfig& config,
                    const models::GptModel& whole) {
  StepOptions options = step_options(s, config);
  options.norm_blocks =
      optim::norm_blocks(whole.parameters(), static_cast<int>(s.parallel.tensor_parallel));
  return options;
}

}  // namespace

int64_t last_stage(const TrainSettings& s) {
  int64_t last = 0;
  for (const data::BatchSchedule::Stage& stage : s.batch.schedule.stages())
    if (stage.begin < s.batch.total_samples()) last = stage.begin;
  return last;
}

MetaRun::MetaRun(const TrainSettings& s, const models::GptConfig& config,
                 const models::GptModel& whole, int rank)
    : s_(s),
      config_(config),
      group_(comm::simulated(rank, s.runtime.rank_count())),
      told_(comm::observed(*group_, recorder_)),
      runtime_({DeviceKind::meta, 0}, s.runtime.threads_per_rank(), s.runtime.device_kind()),
      model_(config, s.precision.type(), 0, model_layout(s, config), *told_, runtime_,
             options(s, config, whole)),
      batch_(empty_batch(s)) {
  runtime_.stream().allow_nondeterministic(s.runtime.allow_nondeterministic);
  model_.step.begin(s.optimizer.config);
}

// The optimizer's arena grows when a schedule makes steps of more micro-batches, and the
// activations' until a pipeline is full; nothing else does.
void MetaRun::run(int64_t consumed, const Vocabulary& vocabulary,
                  const ContinueText& continue_text) {
  const std::vector<int64_t> counts = micro_batch_counts(s_, consumed);
  model_.step.expect(counts.front());
  const auto [less, more] = samples(counts.back());
  run_micro_batches_ = model_.ranks.pipeline().stages == 1 ? counts.back() : more;
  step(std::min(counts.front(), less));
  for (const int64_t count : counts) model_.step.expect(count);
  recorder_.take();
  step(less);
  const plan::StepWork before = recorder_.take();
  if (more > less) step(more);
  work_ = more == less ? before
          : more == counts.back()
              ? recorder_.take()
              : plan::extended(before, recorder_.take(), less, more, counts.back());
  const bool evaluates = s_.run.eval_interval || s_.run.skip_train;
  if (evaluates && memory().arena_bytes() <= most_memory(s_)) evaluate_once();
  if (s_.run.sample_interval && continue_text && vocabulary.tokenizer != nullptr)
    sample_once(*vocabulary.tokenizer, continue_text);
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
  use.host = host_bytes(use);
  return use;
}

// Numbers of micro-batches of two steps that stand for one of `all`: what comes between the two
// comes again for every further micro-batch. A pipeline is full in both; where tensors of several
// micro-batches come and go, the holes between them grow for longer, so that steps of a pipeline
// that are not long are made as they are.
std::pair<int64_t, int64_t> MetaRun::samples(int64_t all) const {
  const parallel::PipelineShape& shape = model_.ranks.pipeline();
  if (shape.stages == 1) return {std::min<int64_t>(all, 2), std::min<int64_t>(all, 3)};
  const int64_t together =
      shape.kind == parallel::ScheduleKind::interleaved ? std::max(shape.group, shape.stages) : 1;
  const int64_t full = (shape.stages / together + 1) * together + all % together;
  if (full + together >= all || all <= kWholeSteps) return {all, all};
  return {full, full + together};
}

void MetaRun::step(int64_t micro_batches) {
  while (static_cast<int64_t>(batches_.size()) < micro_batches) batches_.push_back(batch_);
  runtime_.stream().watch(&recorder_);
  model_.step.run(std::span(batches_).first(static_cast<size_t>(micro_batches)), {});
  runtime_.stream().watch(nullptr);
}

double MetaRun::seconds_of_step(int64_t micro_batches) {
  while (static_cast<int64_t>(batches_.size()) < micro_batches) batches_.push_back(batch_);
  const double begin = now_seconds();
  model_.step.run(std::span(batches_).first(static_cast<size_t>(micro_batches)), {});
  return now_seconds() - begin;
}

void MetaRun::evaluate_once() {
  const EmptySamples samples(*s_.batch.seq_length, confined(s_));
  // So many that every pass is full; a set may have more, or fewer.
  const int64_t enough = (2 * static_cast<int64_t>(model_.loss_pass.together()) + 1) *
                         s_.eval_micro_batch() * model_.ranks.data().size();
  const int64_t count =
      s_.run.full_validation ? enough : std::min(enough, s_.run.eval_iters * s_.eval_batch());
  evaluate(model_.loss_pass, samples, 0, count, s_.eval_micro_batch(), *s_.batch.seq_length);
  recorder_.take();
}

void MetaRun::sample_once(const tokenizers::Tokenizer& tokenizer,
                          const ContinueText& continue_text) {
  on_first_rank(model_, config_, s_.precision.type(), *told_, [&](const models::GptModel& whole) {
    for (const std::string& prompt : s_.run.sample_prompt)
      continue_text(whole, runtime_, tokenizer, prompt, s_.run.sample_tokens);
  });
  recorder_.take();
}

// Micro-batches read ahead of a step, those in it and one that is being read; what threads keep
// for their products; the copy of this rank's share that an asynchronous save writes from.
int64_t MetaRun::host_bytes(const plan::MemoryUse& use) const {
  const data::BatchSchedule& schedule = s_.batch.schedule;
  const int64_t most = schedule.micro_batches(schedule.stages().back().begin);
  const int64_t batches = (2 * most + 3) * batch_bytes(s_);
  const int64_t threads = s_.runtime.threads_per_rank() * kThreadBytes;
  if (!s_.checkpoint.async_save || !s_.checkpoint.save) return batches + threads;
  const auto of = [&](MemoryClass c) { return use.arenas[static_cast<size_t>(c)]; };
  const int64_t state = s_.checkpoint.save_optimizer ? of(MemoryClass::optimizer) : 0;
  return batches + threads + (of(MemoryClass::parameters) + state) / model_.ranks.data().size();
}

}  // namespace megatron::training
