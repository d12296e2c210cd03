#include "parallel/ranks.h"

#include <set>

#include "base/error.h"
#include "comm/async.h"

namespace megatron::parallel {

namespace {

comm::Group* unless_single(comm::Group* group) {
  return group == nullptr || group->size() == 1 ? nullptr : group;
}

// A second group of the same ranks, for calls that overlap with compute; null: one rank.
std::unique_ptr<comm::Group> async(comm::Group* group) {
  if (unless_single(group) == nullptr) return nullptr;
  return comm::async(group->split(0, group->rank(), group->size()));
}

}  // namespace

Ranks::Ranks(const RanksOptions& options, comm::Group& world)
    : options_(options), mesh_(Mesh::build(options.layout, world)) {
  MG_ASSERT(options_.pipeline.stages == options_.layout.pp);
  dense_ = make_replicas(replicas());
  if (has_experts()) expert_ = make_replicas(expert_data());
  if (const int instances = options_.layout.instances;
      instances > 1 && options_.sharding != Sharding::none) {
    const int shards = replicas().size() / instances;
    norm_ = world.split(replicas().rank() / shards, world.rank(), world.size() / instances);
  }
  comm::Group& stages = mesh_.group(Axis::pp);
  if (options_.async_experts) experts_async_ = async(&mesh_.expert_group({Axis::tp, Axis::ep}));
  if (!options_.async) return;
  tensor_async_ = async(&mesh_.group(Axis::tp));
  stages_async_ = async(&stages);
  context_async_ = async(&mesh_.group(Axis::cp));
  if (has_context_levels()) context_ring_async_ = async(&mesh_.context_level(1));
}

bool Ranks::has_experts() const { return &expert_data() != &replicas(); }

// Collective over `replicas`: consecutive ranks form one instance.
Ranks::OwnReplicas Ranks::make_replicas(comm::Group& replicas) const {
  OwnReplicas own;
  if (const int instances = options_.layout.instances; instances > 1) {
    const int shards = replicas.size() / instances, place = replicas.rank();
    own.shards = replicas.split(place / shards, place % shards, shards);
    own.instances = replicas.split(place % shards, place / shards, instances);
  }
  if (!options_.async) return own;
  own.async = async(own.shards == nullptr ? &replicas : own.shards.get());
  own.instances_async = async(own.instances.get());
  return own;
}

ModelRanks Ranks::modules() const {
  return {.tensor = {unless_single(&mesh_.group(Axis::tp)), tensor_async_.get(), options_.sequence},
          .context = unless_single(&mesh_.group(Axis::cp)),
          .context_async = context_async_.get(),
          .context_inner = has_context_levels() ? &mesh_.context_level(0) : nullptr,
          .context_ring = has_context_levels() ? &mesh_.context_level(1) : nullptr,
          .context_ring_async = context_ring_async_.get(),
          .context_exchange = options_.context_exchange,
          .expert = unless_single(&mesh_.expert_group(Axis::ep)),
          .expert_tensor = unless_single(&mesh_.expert_group(Axis::tp)),
          .experts = unless_single(&mesh_.expert_group({Axis::tp, Axis::ep})),
          .experts_async = experts_async_.get(),
          .dispatcher = options_.dispatcher,
          .expert_stops = experts_async_ != nullptr && options_.pipeline.parts > 1,
          .planned_expert_load = options_.planned_expert_load,
          .replicas = unless_single(&replicas())};
}

// Without shards every rank of `all` holds the same elements, and one of those in norm() counts
// them.
Replicas Ranks::replicas(comm::Group& all, const OwnReplicas& own) const {
  Replicas replicas;
  replicas.shards = unless_single(own.shards == nullptr ? &all : own.shards.get());
  replicas.instances = unless_single(own.instances.get());
  replicas.async = own.async.get();
  replicas.instances_async = own.instances_async.get();
  replicas.counted = options_.sharding != Sharding::none || !has_experts() || all.rank() == 0;
  return replicas;
}

DataParallelGroups Ranks::data_parallel() const {
  DataParallelGroups groups;
  groups.dense = replicas(replicas(), dense_);
  groups.expert = has_experts() ? replicas(expert_data(), expert_) : groups.dense;
  groups.ranks = modules();
  groups.stages = stages();
  return groups;
}

comm::Group* Ranks::stages() const { return unless_single(&mesh_.group(Axis::pp)); }
comm::Group* Ranks::stages_async() const { return stages_async_.get(); }

// Without shards a replica of the dense layers has all of them; the experts of a model are on more
// ranks.
comm::Group* Ranks::norm() const {
  if (options_.sharding == Sharding::none && !has_experts()) return unless_single(&model());
  return unless_single(norm_ == nullptr ? &world() : norm_.get());
}

double Ranks::seconds() const {
  const ModelRanks m = modules();
  std::set<const comm::Group*> groups = {
      &world(),        &replicas(),     m.tensor.group, m.tensor.async,       m.context,
      m.context_async, m.context_inner, m.context_ring, m.context_ring_async, m.expert,
      m.expert_tensor, stages(),        m.experts,      m.experts_async,      norm(),
      stages_async()};
  const DataParallelGroups data_groups = data_parallel();
  for (const Replicas* r : {&data_groups.dense, &data_groups.expert})
    for (const comm::Group* g : {r->shards, r->async, r->instances, r->instances_async})
      groups.insert(g);
  double sum = 0;
  for (const comm::Group* group : groups)
    if (group != nullptr) sum += group->seconds();
  return sum;
}

}  // namespace megatron::parallel
