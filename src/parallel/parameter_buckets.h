// Values of a stage's buckets: their memory, and gathering whole values from shards.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "parallel/bucket_layout.h"
#include "parallel/data_parallel.h"
#include "parallel/weight_codes.h"

namespace megatron::parallel {

class ParameterBuckets {
 public:
  // buckets and spans must outlive this; spans have unique names.
  ParameterBuckets(const std::vector<Bucket>& buckets, const std::vector<const Span*>& spans,
                   const DataParallelGroups& groups, Runtime& runtime, Sharding sharding,
                   bool overlap);

  // This rank's shard of a bucket.
  const Tensor& shard(size_t bucket) const { return states_[bucket].shard; }

  void changed();
  void gather_all();
  void begin_step();
  void enter(const megatron::Span& span, Pass pass);
  void leave(const megatron::Span& span);

 private:
  struct State {
    const Bucket* bucket = nullptr;
    Sharding sharding = Sharding::none;  // none if there is a single shard
    std::string call;
    Tensor shard;
    Tensor full;                 // values of all shards; undefined: not gathered
    Tensor codes;                // of all shards, in a gather of codes in flight
    std::vector<Tensor> absent;  // placeholders, without memory, for values that are not gathered
    comm::Work work;             // its gather in flight
    int users = 0;               // active spans that need it
    size_t room = 0;             // index of the room for its type
    int64_t begin = -1;          // first element of its place in the room; -1: none
  };
  struct SpanState {
    std::string name;
    std::vector<size_t> buckets;
    std::vector<int64_t> begins;  // first element of each place
  };
  struct Room {
    DType type = DType::f32;
    int64_t kept = 0;  // elements of this type that stay gathered
    Tensor memory;     // values for the active span and the next
  };
  static bool gathers(const State& state) { return state.sharding != Sharding::none; }
  static bool keeps_shard(const State& state) { return state.sharding == Sharding::parameters; }
  // True if the value is whole only while a span that names it is active.
  static bool by_span(const State& state) {
    return keeps_shard(state) && !state.bucket->outside_spans;
  }
  // True if its codes are gathered: its shard is apart from the gathered values, which are rounded.
  static bool is_coded(const State& state) {
    return state.bucket->coded() &&
           state.bucket->entries[0].placed->parameter.low_precision->active;
  }
  static int64_t kept(const State& state);  // elements of values that stay in memory
  size_t room_of(DType type);
  void make_room();
  void gather(State& state, bool wait, bool codes);
  void receive(State& state);
  void show(State& state);
  void hide(State& state);
  void drop(State& state);
  bool fetch(size_t span, bool wait);
  void prefetch(size_t span, Pass pass);

  DataParallelGroups groups_;
  Runtime& runtime_;
  bool overlap_;
  std::vector<State> states_;
  std::optional<WeightCodes> codes_;  // none: no bucket has them
  std::vector<Room> rooms_;           // one per type
  std::vector<SpanState> spans_;
  std::unordered_map<std::string, size_t> span_of_;
  size_t last_span_ = 0;
  bool everything_ = false;  // everything stays gathered, since gather_all()
};

}  // namespace megatron::parallel
