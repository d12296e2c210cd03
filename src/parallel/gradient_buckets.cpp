#include "parallel/gradient_buckets.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "kernels/table.h"

namespace megatron::parallel {
namespace {

constexpr const char* kTiedCall = "tied gradients";

}  // namespace

GradientBuckets::GradientBuckets(const std::vector<Bucket>& buckets,
                                 const DataParallelGroups& groups, Runtime& runtime,
                                 Sharding sharding, bool overlap)
    : groups_(groups), runtime_(runtime), overlap_(overlap) {
  Stream& stream = runtime.stream();
  const kernels::Table& kernels = kernels::table(stream);
  Arena& arena = runtime.arena(MemoryClass::gradients);
  int64_t kept = 0;
  for (const Bucket& bucket : buckets) {
    const size_t index = states_.size();
    State& state = states_.emplace_back();
    state.bucket = &bucket;
    state.replicas = &groups_.replicas(bucket.expert);
    state.sharding = bucket.shards == 1 ? Sharding::none : sharding;
    state.call = fmt::format("gradients, bucket {}", index);
    state.call_partial = fmt::format("partial gradients, bucket {}", index);
    state.call_instances = fmt::format("gradients across instances, bucket {}", index);
    state.once = state.sharding < Sharding::gradients || bucket.shared;
    if (!bucket.trainable) continue;
    for (const Bucket::Entry& entry : bucket.entries) {
      const bool is_new = bucket_of_.emplace(&entry.placed->parameter, index).second;
      MG_ASSERT(is_new);
      if (entry.placed->tied_across_stages())
        tied_[entry.placed->parameter.name].copies.push_back(entry.placed);
    }
    const DType type = kernels::accumulator(bucket.type());
    MG_ASSERT(kept == 0 || type == type_);
    type_ = type;
    kept += state.once ? bucket.elements() : bucket.shard;
  }

  const Tensor buffer = Tensor::empty(arena, {kept}, type_, "gradients");
  kernels.fill({buffer, 0}, stream);
  int64_t end = 0;
  for (State& state : states_) {
    const Bucket& bucket = *state.bucket;
    if (!bucket.trainable) continue;
    const int64_t size = state.once ? bucket.elements() : bucket.shard;
    const int64_t rank = state.sharding == Sharding::none ? 0 : rank_in(state.replicas->shards);
    const Tensor memory = buffer.slice(0, end, size);
    end += size;
    state.shard = state.once ? memory.slice(0, rank * bucket.shard, bucket.shard) : memory;
    if (!state.once) continue;
    state.full = memory;
    for (const Bucket::Entry& entry : bucket.entries) {
      Parameter& p = entry.placed->parameter;
      p.uses[0].grad = memory.slice(0, entry.begin, entry.size()).view(p.value.shape());
      for (size_t u = 1; u < p.uses.size(); ++u) {
        p.uses[u].grad = Tensor::empty(arena, p.value.shape(), type_,
                                       fmt::format("gradient of use {} of {}", u, p.name));
      }
    }
  }
  in_flight_.reserve(states_.size());
}

// True if its sum cannot begin before all backwards are done: another stage takes part in it, or
// nothing may overlap with compute.
bool GradientBuckets::defers(const State& state) const {
  if (!state.once) return false;
  return !overlap_ || std::ranges::any_of(state.bucket->entries, [](const Bucket::Entry& e) {
    return e.placed->tied_across_stages();
  });
}

int GradientBuckets::micro_batches_final(const State& state) const {
  int least = micro_batches_;
  for (const Bucket::Entry& entry : state.bucket->entries)
    least = std::min(least, entry.placed->parameter.micro_batches_final());
  return least;
}

void GradientBuckets::begin_step(int micro_batches) {
  MG_ASSERT(micro_batches >= 1 && in_flight_.empty());
  micro_batches_ = micro_batches;
  for (State& state : states_) {
    state.reduced = 0;
    state.shard_started = state.last = false;
    for (const Bucket::Entry& entry : state.bucket->entries) {
      for (Parameter::Use& use : entry.placed->parameter.uses) {
        use.started = false;
        use.micro_batches = use.done = 0;
      }
    }
  }
}

void GradientBuckets::begins(Parameter& parameter) {
  const auto found = bucket_of_.find(&parameter);
  if (found != bucket_of_.end()) open(states_[found->second]);
}

void GradientBuckets::open(State& state) {
  if (state.full.defined()) return;
  const Bucket& bucket = *state.bucket;
  const int64_t elements = bucket.elements();
  Stream& stream = runtime_.stream();
  const kernels::Table& kernels = kernels::table(stream);
  state.full = Tensor::empty(runtime_.arena(MemoryClass::gradients), {elements}, type_, state.call);
  int64_t end = 0;
  const auto fill_gap = [&](int64_t next) {
    if (next > end) kernels.fill({state.full.slice(0, end, next - end), 0}, stream);
  };
  for (const Bucket::Entry& entry : bucket.entries) {
    fill_gap(entry.begin);
    end = entry.begin + entry.size();
    Parameter& p = entry.placed->parameter;
    p.uses[0].grad = state.full.slice(0, entry.begin, entry.size()).view(p.value.shape());
  }
  fill_gap(elements);
}

// Later gradients are written to other memory.
void GradientBuckets::close(State& state) {
  for (const Bucket::Entry& entry : state.bucket->entries) {
    Parameter::Use& use = entry.placed->parameter.uses[0];
    use.grad = Tensor();
    use.started = false;
  }
  state.full = Tensor();
}

void GradientBuckets::final(Parameter& parameter) {
  const auto found = bucket_of_.find(&parameter);
  if (found == bucket_of_.end()) return;
  State& own = states_[found->second];
  if (!own.once) {
    const int final = micro_batches_final(own);
    if (final > own.reduced) reduce(own, final);
    return;
  }
  // Buckets are reduced only in the order of the buffer, which is the same on every rank.
  for (State& state : states_) {
    if (!state.once || !state.bucket->trainable || state.reduced > 0) continue;
    if (defers(state) || micro_batches_final(state) < micro_batches_) break;
    reduce(state, micro_batches_);
  }
}

const Parameter::Use* GradientBuckets::Tied::use(size_t index) const {
  for (ParameterSpec* copy : copies) {
    const auto first = static_cast<size_t>(copy->first_use);
    if (index >= first && index < first + copy->parameter.uses.size())
      return &copy->parameter.uses[index - first];
  }
  return nullptr;
}

// Adds the gradients of all uses, from the last one to the first, which is the order of a single
// chunk (complete()). The accumulator of the first use then has the sum.
void GradientBuckets::add_uses(const Tied& tied) {
  Stream& stream = runtime_.stream();
  const kernels::Table& kernels = kernels::table(stream);
  const std::vector<int>& stages = tied.copies[0]->use_stages;
  Tensor sum, received;
  for (size_t u = stages.size(); u-- > 0;) {
    const Parameter::Use* own = tied.use(u);
    if (own == nullptr) continue;
    if (!own->started) kernels.fill({own->grad, 0}, stream);
    const bool last = u + 1 == stages.size();
    if (!last && tied.use(u + 1) == nullptr) {
      if (!received.defined())
        received = Tensor::empty(runtime_.arena(MemoryClass::scratch), own->grad.shape(), type_,
                                 kTiedCall);
      groups_.stages->recv(received, stages[u + 1], stream, kTiedCall).wait(stream);
      sum = received;
    }
    if (!last) kernels.add({own->grad, sum, own->grad}, stream);
    sum = own->grad;
    if (u > 0 && tied.use(u - 1) == nullptr)
      groups_.stages->send(sum, stages[u - 1], stream, kTiedCall).wait(stream);
  }
}

// Gives every copy the sum over all uses.
void GradientBuckets::sum(const Tied& tied) {
  Stream& stream = runtime_.stream();
  const std::vector<int>& stages = tied.copies[0]->use_stages;
  MG_ASSERT(stages.size() == tied.copies[0]->used_in.size());
  add_uses(tied);
  const ParameterSpec* const first =
      *std::ranges::min_element(tied.copies, {}, &ParameterSpec::first_use);
  const Tensor& total = first->parameter.uses[0].grad;
  if (first->first_use == 0) {
    std::set<int> others(stages.begin(), stages.end());
    others.erase(stages[0]);
    for (const int stage : others)
      groups_.stages->send(total, stage, stream, kTiedCall).wait(stream);
  } else {
    groups_.stages->recv(total, stages[0], stream, kTiedCall).wait(stream);
  }
  for (ParameterSpec* copy : tied.copies) {
    Parameter::Use& use = copy->parameter.uses[0];
    if (copy != first) kernels::table(stream).copy({.x = total, .out = use.grad}, stream);
    use.started = true;
  }
}

void GradientBuckets::finish() {
  for (const auto& [name, tied] : tied_) sum(tied);
  for (State& state : states_) {
    if (state.bucket->trainable && state.reduced < micro_batches_) reduce(state, micro_batches_);
  }
  settle_some(true);
  for (State& state : states_) {
    state.across.wait(runtime_.stream());
    state.across = {};
  }
}

// Adds every use's gradient to the first one's, the last ones first; missing ones are zero.
void GradientBuckets::complete(State& state) {
  Stream& stream = runtime_.stream();
  const kernels::Table& kernels = kernels::table(stream);
  for (const Bucket::Entry& entry : state.bucket->entries) {
    if (entry.placed->tied_across_stages()) continue;  // sum() has done so
    std::vector<Parameter::Use>& uses = entry.placed->parameter.uses;
    for (size_t u = uses.size(); u-- > 0;) {
      if (!uses[u].started) kernels.fill({uses[u].grad, 0}, stream);
      if (u + 1 < uses.size()) kernels.add({uses[u].grad, uses[u + 1].grad, uses[u].grad}, stream);
    }
  }
}

void GradientBuckets::reduce(State& state, int micro_batches) {
  Stream& stream = runtime_.stream();
  const Bucket& bucket = *state.bucket;
  settle_some(!state.once);
  open(state);
  complete(state);
  for (const Bucket::Partial& partial : bucket.partials) {
    comm::Group* const group = groups_.ranks.group(partial.group);
    if (size_of(group) == 1) continue;
    const Tensor gradients = state.full.slice(0, partial.begin, partial.end - partial.begin);
    group->all_reduce(gradients, comm::Reduce::sum, stream, state.call_partial).wait(stream);
  }
  state.reduced = micro_batches;
  state.last = micro_batches == micro_batches_;
  reduce_over_shards(state);
  in_flight_.push_back(static_cast<size_t>(&state - states_.data()));
  if (!overlap_) settle_some(true);
}

void GradientBuckets::reduce_over_shards(State& state) {
  Stream& stream = runtime_.stream();
  const Bucket& bucket = *state.bucket;
  const Replicas& replicas = *state.replicas;
  comm::Group* const shards =
      overlap_ && replicas.async != nullptr ? replicas.async : replicas.shards;
  if (state.sharding == Sharding::none) {
    if (size_of(shards) > 1)
      state.work = shards->all_reduce(state.full, comm::Reduce::sum, stream, state.call);
    return;
  }
  const Tensor own = state.full.slice(0, shards->rank() * bucket.shard, bucket.shard);
  const Tensor out = state.once || state.shard_started ? own : state.shard;
  state.work = shards->reduce_scatter(state.full, out, comm::Reduce::sum, stream, state.call);
  if (state.once) return;
  if (state.shard_started) state.part = own;
  state.shard_started = true;
  close(state);
}

// Called when the sum over shards is complete; begins the one across instances.
void GradientBuckets::settle(State& state) {
  Stream& stream = runtime_.stream();
  state.work.wait(stream);
  state.work = {};
  if (state.part.defined()) {
    kernels::table(stream).add({state.shard, state.part, state.shard}, stream);
    state.part = Tensor();
  }
  const Replicas& replicas = *state.replicas;
  if (!state.last || size_of(replicas.instances) == 1) return;
  comm::Group& instances = overlap_ && replicas.instances_async != nullptr
                               ? *replicas.instances_async
                               : *replicas.instances;
  state.across = instances.all_reduce(state.shard, comm::Reduce::sum, stream, state.call_instances);
}

// Settles sums in the order in which they were begun; with `all` also those that are not done yet.
void GradientBuckets::settle_some(bool all) {
  size_t done = 0;
  for (; done < in_flight_.size(); ++done) {
    State& state = states_[in_flight_[done]];
    if (!all && !state.work.done.reached()) break;
    settle(state);
  }
  in_flight_.erase(in_flight_.begin(), in_flight_.begin() + static_cast<int64_t>(done));
}

}  // namespace megatron::parallel
