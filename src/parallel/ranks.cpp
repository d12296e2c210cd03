#include "parallel/ranks.h"

#include <set>

#include "base/error.h"
#include "comm/beside.h"

namespace megatron::parallel {

namespace {

comm::Group* unless_single(comm::Group* group) {
  return group == nullptr || group->size() == 1 ? nullptr : group;
}

// The same ranks again, for calls beside the compute; null: one rank.
std::unique_ptr<comm::Group> beside(comm::Group* group) {
  if (unless_single(group) == nullptr) return nullptr;
  return comm::beside(group->split(0, group->rank(), group->size()));
}

// Of the stages, those that hold the first and the last piece; null where they are one, and on the
// others. Collective over the stages.
std::unique_ptr<comm::Group> embedding_group(const PipelineShape& shape, comm::Group& stages) {
  const int first = shape.stage_of(0), last = shape.stage_of(shape.pieces() - 1);
  if (first == last) return nullptr;
  const int stage = stages.rank();
  const bool member = stage == first || stage == last;
  auto group = stages.split(member ? 0 : 1 + stage, stage == last ? 1 : 0, member ? 2 : 1);
  return member ? std::move(group) : nullptr;
}

}  // namespace

Ranks::Ranks(const RanksOptions& options, comm::Group& world)
    : options_(options), mesh_(Mesh::build(options.layout, world)) {
  MG_ASSERT(options_.pipeline.stages == options_.layout.pp);
  const int instances = options_.layout.instances;
  if (instances > 1) {  // neighbours along dp and cp are one instance
    const int shards = data().size() / instances, place = data().rank();
    shards_ = data().split(place / shards, place % shards, shards);
    instances_ = data().split(place % shards, place / shards, instances);
    if (options_.sharding != Sharding::none)
      norm_ = world.split(place / shards, world.rank(), world.size() / instances);
  }
  comm::Group& stages = mesh_.group(Axis::pp);
  embedding_ = embedding_group(options_.pipeline, stages);
  if (!options_.beside) return;
  tensor_beside_ = beside(&mesh_.group(Axis::tp));
  shards_beside_ = beside(data_parallel().shards);
  instances_beside_ = beside(instances_.get());
  stages_beside_ = beside(&stages);
}

TensorParallel Ranks::tensor() const {
  return {unless_single(&mesh_.group(Axis::tp)), tensor_beside_.get(), options_.sequence};
}

DataParallelGroups Ranks::data_parallel() const {
  DataParallelGroups groups;
  groups.shards = unless_single(shards_ == nullptr ? &data() : shards_.get());
  groups.instances = unless_single(instances_.get());
  groups.beside = shards_beside_.get();
  groups.instances_beside = instances_beside_.get();
  groups.tensor = unless_single(&mesh_.group(Axis::tp));
  groups.embedding = embedding_.get();
  return groups;
}

comm::Group* Ranks::stages() const { return unless_single(&mesh_.group(Axis::pp)); }
comm::Group* Ranks::stages_beside() const { return stages_beside_.get(); }

comm::Group* Ranks::norm() const {
  if (options_.sharding == Sharding::none) return unless_single(&model());
  return unless_single(norm_ == nullptr ? &world() : norm_.get());
}

double Ranks::seconds() const {
  const DataParallelGroups data_groups = data_parallel();
  const std::set<const comm::Group*> groups = {&world(),
                                               &data(),
                                               tensor().group,
                                               tensor().beside,
                                               stages(),
                                               stages_beside(),
                                               norm(),
                                               data_groups.shards,
                                               data_groups.beside,
                                               data_groups.instances,
                                               data_groups.instances_beside,
                                               data_groups.embedding};
  double sum = 0;
  for (const comm::Group* group : groups)
    if (group != nullptr) sum += group->seconds();
  return sum;
}

}  // namespace megatron::parallel
