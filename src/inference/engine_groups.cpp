#include "inference/engine_groups.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::inference {
namespace {

std::unique_ptr<comm::Group> stages_descending(const EngineLayout& layout, comm::Group& world) {
  MG_ASSERT(world.size() == layout.ranks() && layout.tensor % layout.experts == 0);
  const int tensor = layout.tensor, stage = layout.stages - 1 - world.rank() / tensor;
  auto grid = world.split(0, stage * tensor + world.rank() % tensor, world.size());
  grid->set_name("engine");
  return grid;
}

}  // namespace

EngineGroups::EngineGroups(const EngineLayout& layout, comm::Group& world)
    : layout_(layout),
      grid_(stages_descending(layout, world)),
      ranks_({.layout = {.tp = layout.tensor,
                         .ep = layout.experts,
                         .pp = layout.stages,
                         .etp = layout.tensor / layout.experts},
              .pipeline = {.stages = layout.stages}},
             *grid_),
      host_(std::make_unique<Runtime>(Device{DeviceKind::cpu, 0}, 1)) {}

std::unique_ptr<models::Stage> EngineGroups::build(const models::Model& model, Runtime& runtime,
                                                   DType type, uint64_t seed) const {
  auto stage = part(model, runtime, type, seed);
  parallel::allocate(models::tensors_of(*stage), runtime);
  return stage;
}

std::unique_ptr<models::Stage> EngineGroups::part(const models::Model& model, Runtime& runtime,
                                                  DType type, uint64_t seed) const {
  const parallel::PipelineShape& shape = ranks_.pipeline();
  MG_CHECK(shape.stages <= std::max<int64_t>(model->num_layers(), 1),
           "--pipeline-model-parallel-size is {}, but the model has only {} layers; each stage "
           "needs one",
           shape.stages, model->num_layers());
  MG_CHECK(layout_.experts == 1 || model->facts().experts,
           "--expert-model-parallel-size is {}, but the model has no experts; leave it out",
           layout_.experts);
  const auto parts = parallel::place_layers(model->num_layers(), shape, {.uneven = true});
  return model.build(runtime, type, seed, parts[static_cast<size_t>(ranks_.stage())],
                     ranks_.modules());
}

EngineRanks EngineGroups::ranks(bool led) const {
  if (grid_->size() == 1) return {};
  const int tensor = layout_.tensor;
  return {.all = grid_.get(),
          .stages = ranks_.stages(),
          .host = &host_->stream(),
          .tensor = tensor > 1 ? ranks_.tensor().group : nullptr,
          .modules = ranks_.modules(),
          .drawing = grid_->size() - tensor,
          .led = led};
}

}  // namespace megatron::inference
