// Executes steps of a run on threads, and counts each rank's traffic and its memory.
#pragma once

#include <array>

#include "comm/traffic.h"
#include "corpus/chat/preference_role.h"
#include "dist/ranks.h"
#include "training/plan/make_plan.h"
#include "training/reference_pass.h"
#include "training/run_plan.h"
#include "training/stored_reference.h"

namespace megatron::training {

struct ExecutedRank {
  plan::ContextExchange exchange;                // in the last step
  std::array<int64_t, kMemoryClasses> memory{};  // high-water marks of the arenas
  double loss = 0;                               // loss of the last step
  // Bytes of the calls in the last step, but for the gradient norm, whose blocks on other ranks a
  // plan can only bound.
  double sent = 0;
};

class ContextCounter final : public comm::TrafficListener {
 public:
  explicit ContextCounter(plan::ContextExchange& counted) : counted_(counted) {}
  void communicated(const comm::Traffic& traffic) override {
    if (counts && traffic.call != "gradient norm") all += comm::sent_bytes(traffic);
    if (!counts || !traffic.call.starts_with("context, ")) return;
    ++counted_.calls;
    counted_.sent += comm::sent_bytes(traffic);
    if (traffic.overlaps) counted_.overlapped += comm::sent_bytes(traffic);
  }
  bool counts = false;
  double all = 0;  // bytes of all calls

 private:
  plan::ContextExchange& counted_;
};

// Makes each sequence two documents, a chosen and a rejected completion.
inline void make_pairs(corpus::HostBatch& batch) {
  using enum corpus::PreferenceRole;
  const int64_t length = batch.layout.length, half = length / 2;
  batch.targets.clear();
  for (int64_t i = 0; i < batch.layout.sequences * length; ++i) {
    const bool second = i % length >= half;
    batch.targets.push_back(static_cast<double>(second ? rejected : chosen));
    batch.segment_starts[static_cast<size_t>(i)] = static_cast<int32_t>(second ? half : 0);
  }
}

// Gives each sequence a text for an encoder, of this length, all of which it sees.
inline void add_encoder(corpus::HostBatch& batch, int64_t length) {
  corpus::HostBatch texts{.layout = {.sequences = batch.layout.sequences, .length = length}};
  for (int64_t i = 0; i < texts.layout.rows(); ++i) {
    texts.tokens.push_back(static_cast<int32_t>(i % 5));
    texts.positions.push_back(static_cast<int32_t>(i % length));
    texts.segment_starts.push_back(0);
  }
  texts.sample_ids = batch.sample_ids;
  corpus::set_segment_ends(texts);
  batch.encoder_starts.assign(batch.tokens.size(), 0);
  batch.encoder_ends.assign(batch.tokens.size(), static_cast<int32_t>(length - 1));
  batch.encoder = std::make_shared<const corpus::HostBatch>(std::move(texts));
}

// A micro-batch of whole sequences, each one document, or a pair of completions of --task dpo; of a
// model with one score, pairs of tokens.
inline corpus::HostBatch whole_batch(const SettledRun& run, int64_t first) {
  const int64_t sequences = *run.settings.batch.micro_batch_size,
                length = run.settings.batch.labelled_length(), vocabulary = run.model->vocab_size(),
                scores = run.model->score_labels();
  const models::ModelFacts& facts = run.model->facts();
  const bool answers = facts.scored == models::ScoredTokens::span;
  corpus::HostBatch batch{.layout = {.sequences = sequences, .length = length}};
  for (int64_t i = 0; i < sequences * length; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(i * 7 % vocabulary));
    batch.labels.push_back(static_cast<int32_t>((i * 7 + 7) % (scores > 0 ? scores : vocabulary)));
    batch.positions.push_back(static_cast<int32_t>(i % length));
    batch.loss_mask.push_back(1);
    if (scores == 1 || answers) batch.targets.push_back(0);
    if (run.settings.data.confines_attention()) batch.segment_starts.push_back(0);
  }
  for (int64_t i = 0; i < sequences; ++i) batch.sample_ids.push_back(first + i);
  if (run.settings.data.task == "dpo") make_pairs(batch);
  if (facts.two_sided && !batch.segment_starts.empty()) corpus::set_segment_ends(batch);
  if (facts.encoder_layers > 0) add_encoder(batch, *run.settings.batch.seq_length);
  return batch;
}

// The sequences of whole_batch() as a data set.
class WholeSamples final : public data::Dataset {
 public:
  explicit WholeSamples(const SettledRun& run) : batch_(whole_batch(run, 0)) {}
  int64_t size() const override { return batch_.layout.sequences; }
  void read(int64_t k, data::Sample& sample) const override {
    const corpus::HostBatch one = corpus::sequence_of(batch_, k % size());
    sample.tokens.assign(one.tokens.begin(), one.tokens.end());
    sample.labels.assign(one.labels.begin(), one.labels.end());
    sample.position_ids.assign(one.positions.begin(), one.positions.end());
    sample.targets = one.targets;
    sample.loss_mask = one.loss_mask;
    sample.segment_begin = one.segment_starts;
  }
  void read_filler(data::Sample& sample) const override { read(0, sample); }

 private:
  corpus::HostBatch batch_;
};

inline std::vector<ExecutedRank> executed(const SettledRun& run, int steps) {
  const settings::TrainSettings& s = run.settings;
  std::vector<ExecutedRank> ranks(static_cast<size_t>(s.runtime.rank_count()));
  testing::run_ranks(s.runtime.rank_count(), [&](comm::Group& group) {
    ExecutedRank& own = ranks[static_cast<size_t>(group.rank())];
    ContextCounter counter(own.exchange);
    const auto world = comm::observed(group, counter);
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    TrainedModel trained(run.model, s.precision.type(), 1, model_layout(s, run.model), *world,
                         runtime, step_options(s, run.model, run.task.get()));
    std::optional<ReferenceModel> reference;
    const bool compares = run.task != nullptr && run.task->needs_reference(),
               before = s.data.precompute_reference;
    const WholeSamples samples(run);
    const int64_t length = *s.batch.seq_length;
    if (compares && !before) {
      reference.emplace(trained, run.model, s.precision.type(), s.parallel.placement());
      for (const parallel::Shard& shard : reference->shards())
        parallel::initialize(shard, 1, runtime.stream());
      reference->filled();
    }
    trained.initialize(1);
    if (compares && before) {
      trained.step.data_parallel().parameters_changed();
      std::vector<int64_t> begins = {0};
      while (std::ssize(begins) < 50) begins.push_back(begins.back() + length);
      values_of_rows(trained.loss_pass, samples, begins, *s.batch.micro_batch_size, length);
    }
    trained.step.begin(s.optimizer.config);
    std::vector<corpus::HostBatch> batches;
    for (int64_t i = 0; i < s.batch.schedule.micro_batches(0); ++i) {
      const int64_t sequences = *s.batch.micro_batch_size;
      batches.push_back(whole_batch(run, i * sequences));
      corpus::keep_tokens(batches.back(),
                          trained.ranks.tokens(sequences, s.batch.labelled_length()));
    }
    for (int step = 1; step <= steps; ++step) {
      counter.counts = step == steps;
      for (corpus::HostBatch& batch : batches)
        if (compares && before)
          corpus::set_reference(batch, std::vector<double>(batch.whole().tokens.size()));
      if (reference) reference->fill(samples, batches);
      own.loss = trained.step.run(batches, {.learning_rate = 1e-3}).loss;
      world->barrier("end of the step");  // reports the calls of other threads
    }
    own.sent = counter.all;
    for (int i = 0; i < kMemoryClasses; ++i)
      own.memory[static_cast<size_t>(i)] = runtime.arena(static_cast<MemoryClass>(i)).high_water();
  });
  return ranks;
}

// Compares memory of every class, of the first rank of each stage, and the traffic of rank 0.
inline void expect_planned(const plan::Plan& plan, const std::vector<ExecutedRank>& ranks) {
  const size_t per_stage = ranks.size() / plan.stages.size();
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    for (int c = 0; c < kMemoryClasses; ++c) {
      if (static_cast<MemoryClass>(c) == MemoryClass::scratch) continue;
      const auto at = static_cast<size_t>(c);
      EXPECT_EQ(plan.stages[stage].arenas[at], ranks.at(stage * per_stage).memory[at])
          << "stage " << stage << ", " << name(static_cast<MemoryClass>(c));
    }
  }
  double sent = 0;
  for (const plan::TrafficWork& work : plan.traffic)
    if (work.call != "gradient norm") sent += work.sent;
  EXPECT_EQ(sent, ranks[0].sent);
}

}  // namespace megatron::training
