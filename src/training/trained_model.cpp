#include "training/trained_model.h"

#include "training/whole_model.h"

namespace megatron::training {
namespace {

StepOptions completed(StepOptions options, const models::Model& model) {
  if (options.hidden == 0) options.hidden = model->hidden_size();
  return options;
}

}  // namespace

TrainedModel::TrainedModel(const models::Model& model, DType type, uint64_t seed,
                           const ModelLayout& layout, comm::Group& world, Runtime& run_time,
                           StepOptions options)
    : runtime(run_time),
      ranks(layout.ranks, world),
      parts(model, ranks, layout.layers, runtime, type, seed),
      step(parts.chunks(), type, ranks, runtime, completed(std::move(options), model)),
      loss_pass({.chunks = parts.chunks(),
                 .type = type,
                 .ranks = &ranks,
                 .parameters = &step.data_parallel()},
                runtime, step.options()) {}

void TrainedModel::initialize(uint64_t value_seed) {
  for (const parallel::Shard& shard : shards())
    parallel::initialize(shard, value_seed, runtime.stream());
  nn::initialize(step.states(), value_seed, runtime.stream());
}

std::vector<checkpoint::HeldTensor> TrainedModel::held() const { return held_weights(step); }

}  // namespace megatron::training
