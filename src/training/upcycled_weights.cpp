#include "training/upcycled_weights.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/progress.h"
#include "kernels/table.h"
#include "training/step.h"

namespace megatron::training {
namespace {

using Source = models::UpcycledModel::Source;

// This rank's part of a parameter, in terms of the tensors from which it is initialized.
Source held_source(const UpcycledWeights& weights, const parallel::ParameterSpec& placed) {
  Source source = weights.experts.source(placed.parameter.name, placed.whole);
  for (const parallel::Division& division : placed.divisions)
    source.placement = parallel::narrowed(source.placement, division.axis, division.slices());
  return source;
}

void draw(const parallel::Shard& shard, const parallel::Placement& placement, uint64_t seed,
          Stream& stream) {
  parallel::ParameterSpec placed = *shard.placed;
  placed.placement = placement;
  parallel::Shard drawn = shard;
  drawn.placed = &placed;
  parallel::initialize(drawn, seed, stream);
}

}  // namespace

void load_upcycled(const checkpoint::ModelDirectory& directory, const UpcycledWeights& weights,
                   const TrainStep& step, uint64_t seed, Runtime& runtime, bool tells) {
  const double begin = now_seconds();
  Stream& stream = runtime.stream();
  nn::initialize(step.states(), seed, stream);
  std::vector<Source> sources;
  std::vector<checkpoint::HeldTensor> held;
  sources.reserve(step.shards().size());  // held tensors point into it
  for (const parallel::Shard& shard : step.shards()) {
    const Source& source = sources.emplace_back(held_source(weights, *shard.placed));
    if (source.drawn) {
      draw(shard, source.placement, seed, stream);
    } else {
      held.push_back(
          {"", &source.placement, shard.value, shard.placed->parameter.value.shape(), shard.begin});
    }
  }
  std::optional<Progress> progress;
  if (tells) progress.emplace("upcycling", std::ssize(held), "tensors");
  load_weights(directory, held, weights.dense, {.tells = tells, .progress = [&](int64_t filled) {
                                                  if (progress) progress->update(filled);
                                                }});
  for (size_t i = 0; i < sources.size(); ++i)
    if (const Tensor& value = step.shards()[i].value; sources[i].factor != 1)
      kernels::table(stream).scale({.factor = sources[i].factor, .x = value, .out = value}, stream);
  if (!tells) return;
  progress->finish();
  log::info("upcycled {} in {:.2f} s: {}", directory.path(), now_seconds() - begin,
            weights.experts.summary);
}

}  // namespace megatron::training
