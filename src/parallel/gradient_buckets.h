// Gradients of a stage's buckets: their memory and their sums over ranks.
#pragma once

#include <map>
#include <string>
#include <unordered_map>

#include "parallel/bucket_layout.h"
#include "parallel/data_parallel.h"

namespace megatron::parallel {

class GradientBuckets {
 public:
  // buckets: must outlive this; they have as many shards as their replicas' shards group has ranks
  // (Sharding::none: one). Buckets with one shard are not divided, whatever `sharding` is.
  GradientBuckets(const std::vector<Bucket>& buckets, const DataParallelGroups& groups,
                  Runtime& runtime, Sharding sharding, bool overlap);

  // This rank's shard of a bucket, to be read after finish(). Undefined: not trainable.
  const Tensor& shard(size_t bucket) const { return states_[bucket].shard; }

  void begin_step(int micro_batches);
  void begins(Parameter& parameter);
  void final(Parameter& parameter);
  void finish();

 private:
  // once: reduced after the last micro-batch, in the memory of all shards, which is kept. Otherwise
  // each micro-batch's gradients are reduced and added to the shard, and their memory is released.
  struct State {
    const Bucket* bucket = nullptr;
    const Replicas* replicas = nullptr;
    Sharding sharding = Sharding::none;
    std::string call, call_partial, call_instances;
    bool once = true;
    Tensor full,
        shard;  // full: gradients of all shards; undefined: none since the last reduction
    bool shard_started = false;
    int reduced = 0;    // micro-batches reduced so far; with once, all at once
    bool last = false;  // this step's last reduction of it is in flight
    Tensor part;        // to be added to the shard; undefined: nothing
    comm::Work work, across;
  };
  bool defers(const State& state) const;
  int micro_batches_final(const State& state) const;
  void open(State& state);
  void close(State& state);
  void complete(State& state);
  // A parameter that several chunks hold, and this rank's copies of it.
  struct Tied {
    std::vector<ParameterSpec*> copies;
    const Parameter::Use* use(size_t index) const;  // null: another stage's
  };
  void sum(const Tied& tied);
  void add_uses(const Tied& tied);
  void reduce(State& state, int micro_batches);
  void reduce_over_shards(State& state);
  void settle(State& state);
  void settle_some(bool all);

  DataParallelGroups groups_;
  Runtime& runtime_;
  bool overlap_;
  DType type_ = DType::f32;
  std::vector<State> states_;
  std::unordered_map<const Parameter*, size_t> bucket_of_;
  std::map<std::string, Tied> tied_;  // by name: stages have the same order
  std::vector<size_t> in_flight_;  // buckets whose sum over shards is in flight, in order of start
  int micro_batches_ = 0;
};

}  // namespace megatron::parallel
