#include "inference/engine_groups.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::inference {
namespace {

std::unique_ptr<comm::Group> stages_descending(int tensor, int stages, comm::Group& world) {
  MG_ASSERT(world.size() == tensor * stages);
  const int stage = stages - 1 - world.rank() / tensor;
  auto grid = world.split(0, stage * tensor + world.rank() % tensor, world.size());
  grid->set_name("engine");
  return grid;
}

}  // namespace

EngineGroups::EngineGroups(int tensor, int stages, comm::Group& world)
    : grid_(stages_descending(tensor, stages, world)),
      ranks_({.layout = {.tp = tensor, .pp = stages}, .pipeline = {.stages = stages}}, *grid_),
      host_(std::make_unique<Runtime>(Device{DeviceKind::cpu, 0}, 1)) {}

std::unique_ptr<models::Stage> EngineGroups::build(const models::Model& model, Runtime& runtime,
                                                   DType type, uint64_t seed) const {
  const parallel::PipelineShape& shape = ranks_.pipeline();
  MG_CHECK(shape.stages <= std::max<int64_t>(model->num_layers(), 1),
           "--pipeline-model-parallel-size is {}, but the model has only {} layers; each stage "
           "needs one",
           shape.stages, model->num_layers());
  const auto parts = parallel::place_layers(model->num_layers(), shape, {.uneven = true});
  auto stage = model.build(runtime, type, seed, parts[static_cast<size_t>(ranks_.stage())],
                           ranks_.modules());
  parallel::allocate(models::tensors_of(*stage), runtime);
  return stage;
}

EngineRanks EngineGroups::ranks(bool led) const {
  if (grid_->size() == 1) return {};
  const int tensor = ranks_.tensor().size();
  return {.all = grid_.get(),
          .stages = ranks_.stages(),
          .host = &host_->stream(),
          .tensor = tensor > 1 ? ranks_.tensor().group : nullptr,
          .drawing = grid_->size() - tensor,
          .led = led};
}

}  // namespace megatron::inference
