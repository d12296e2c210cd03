#include "training/step_feed.h"

#include <memory>
#include <utility>

#include "data/sampler.h"

namespace megatron::training {
namespace {

corpus::Prefetcher open(const RunPlan& plan, int64_t consumed, const parallel::Ranks& ranks) {
  const settings::TrainSettings& s = plan.settings;
  const data::Dataset& set = plan.corpus.set(data::Split::train);
  const data::SamplerShape shape{.total = set.size(),
                                 .consumed = consumed,
                                 .micro_batch_size = *s.batch.micro_batch_size,
                                 .rank = ranks.samples().rank(),
                                 .size = ranks.samples().size()};
  std::unique_ptr<data::Sampler> sampler;
  if (s.run.dataloader_type == "cyclic") {
    sampler = std::make_unique<data::CyclicSampler>(shape, s.run.data_sharding);
  } else {
    sampler = std::make_unique<data::SequentialSampler>(shape);
  }
  const int64_t together = shape.micro_batch_size * shape.size;
  return corpus::Prefetcher(set, std::move(sampler),
                            ranks.tokens(shape.micro_batch_size, s.batch.labelled_length()),
                            (plan.last_sample() - consumed) / together,
                            s.batch.schedule.last() / together, plan.model->facts().two_sided);
}

}  // namespace

StepFeed::StepFeed(const RunPlan& plan, int64_t consumed, const parallel::Ranks& ranks)
    : schedule_(plan.settings.batch.schedule), data_(open(plan, consumed, ranks)) {}

std::span<corpus::HostBatch> StepFeed::read(int64_t consumed) {
  if (std::exchange(peeked_, false)) return micro_batches_;
  micro_batches_.resize(static_cast<size_t>(schedule_.micro_batches(consumed)));
  for (corpus::HostBatch& micro_batch : micro_batches_) data_.next(micro_batch);
  return micro_batches_;
}

std::span<corpus::HostBatch> StepFeed::peek(int64_t consumed) {
  const std::span<corpus::HostBatch> first = read(consumed);
  peeked_ = true;
  return first;
}

}  // namespace megatron::training
