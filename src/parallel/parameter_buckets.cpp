#include "parallel/parameter_buckets.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::parallel {
ParameterBuckets::ParameterBuckets(const std::vector<Bucket>& buckets,
                                   const std::vector<const megatron::Span*>& spans,
                                   const DataParallelGroups& groups, Runtime& runtime,
                                   Sharding sharding, bool overlap)
    : groups_(groups), runtime_(runtime), overlap_(overlap) {
  for (const megatron::Span* span : spans) {
    const bool is_new = span_of_.emplace(span->name, spans_.size()).second;
    MG_ASSERT(is_new);
    spans_.push_back({.name = span->name, .buckets = {}});
  }
  for (const Bucket& bucket : buckets) {
    for (const int s : bucket.spans)
      spans_[static_cast<size_t>(s)].buckets.push_back(states_.size());
    State& state = states_.emplace_back();
    state.bucket = &bucket;
    state.sharding = bucket.shards == 1 ? Sharding::none : sharding;
    state.room = room_of(bucket.type());
    rooms_[state.room].kept += kept(state);
    state.call = fmt::format("parameters, bucket {}", states_.size() - 1);
    for (const Bucket::Entry& entry : bucket.entries) {
      MG_ASSERT(entry.placed->parameter.value.dtype() == bucket.type());
      state.absent.push_back(entry.placed->parameter.value);
    }
  }

  Arena& arena = runtime.arena(MemoryClass::parameters);
  std::vector<Tensor> buffers;
  for (const Room& room : rooms_)
    buffers.push_back(Tensor::empty(arena, {room.kept}, room.type, "parameters"));
  std::vector<int64_t> ends(rooms_.size());
  for (State& state : states_) {
    const Bucket& bucket = *state.bucket;
    const Tensor memory = buffers[state.room].slice(0, ends[state.room], kept(state));
    ends[state.room] += kept(state);
    if (keeps_shard(state)) {
      state.shard = memory;
    } else {
      const int64_t rank = gathers(state) ? rank_in(groups_.replicas(bucket.expert).shards) : 0;
      state.full = memory.slice(0, 0, bucket.elements());
      state.shard =
          memory.slice(0, bucket.coded() ? bucket.elements() : rank * bucket.shard, bucket.shard);
      show(state);
    }
  }
  if (std::ranges::any_of(buckets, &Bucket::coded)) {
    std::vector<Tensor> shards;
    for (const State& state : states_) shards.push_back(state.shard);
    codes_.emplace(buckets, shards, groups, runtime);
  }
  if (std::ranges::any_of(states_, keeps_shard)) make_room();
}

int64_t ParameterBuckets::kept(const State& state) {
  const Bucket& bucket = *state.bucket;
  return (keeps_shard(state) ? 0 : bucket.elements()) +
         (keeps_shard(state) || bucket.coded() ? bucket.shard : 0);
}

size_t ParameterBuckets::room_of(DType type) {
  const auto found = std::ranges::find(rooms_, type, &Room::type);
  if (found != rooms_.end()) return static_cast<size_t>(found - rooms_.begin());
  rooms_.push_back({.type = type});
  return rooms_.size() - 1;
}

// Spans are placed alternately at the begin and at the end of a buffer as large as the largest two
// consecutive spans (one, without prefetch), so that these two never overlap. Each type has its own
// buffer.
void ParameterBuckets::make_room() {
  Arena& arena = runtime_.arena(MemoryClass::parameters);
  for (SpanState& span : spans_) span.begins.resize(span.buckets.size());
  for (size_t r = 0; r < rooms_.size(); ++r) {
    std::vector<int64_t> sizes;
    int64_t size = 0;
    for (const SpanState& span : spans_) {
      const int64_t before = sizes.empty() ? 0 : sizes.back();
      sizes.push_back(0);
      for (const size_t b : span.buckets)
        if (states_[b].room == r && keeps_shard(states_[b]))
          sizes.back() += states_[b].bucket->elements();
      size = std::max(size, sizes.back() + (overlap_ ? before : 0));
    }
    rooms_[r].memory = Tensor::empty(arena, {size}, rooms_[r].type, "parameters of spans");
    for (size_t s = 0; s < spans_.size(); ++s) {
      int64_t begin = overlap_ && s % 2 == 1 ? size - sizes[s] : 0;
      for (size_t i = 0; i < spans_[s].buckets.size(); ++i) {
        const State& state = states_[spans_[s].buckets[i]];
        if (state.room != r || !keeps_shard(state)) continue;
        spans_[s].begins[i] = begin;
        begin += state.bucket->elements();
      }
    }
  }
  for (State& state : states_) {
    if (!keeps_shard(state) || by_span(state)) continue;
    state.full = Tensor::empty(arena, {state.bucket->elements()}, state.bucket->type(),
                               "parameters outside spans");
    show(state);
  }
}

// codes: those of the weights, if their products are quantized; else the values.
void ParameterBuckets::gather(State& state, bool wait, bool codes) {
  Stream& stream = runtime_.stream();
  const Replicas& replicas = groups_.replicas(state.bucket->expert);
  const bool async = overlap_ && replicas.async != nullptr;
  comm::Group& shards = async ? *replicas.async : *replicas.shards;
  state.work.wait(stream);  // an earlier gather whose result was never needed
  Tensor from = state.shard, to = state.full;
  state.codes = {};
  if (codes && is_coded(state)) {
    const Bucket& bucket = *state.bucket;
    const int64_t bytes = bucket.code_bytes(bucket.shard);
    to = state.codes = Tensor::empty(runtime_.arena(MemoryClass::communication),
                                     {bucket.shards * bytes}, DType::u8, "codes of parameters");
    from = to.slice(0, shards.rank() * bytes, bytes);
    codes_->encode(static_cast<size_t>(&state - states_.data()), from);
  }
  state.work = shards.all_gather(from, to, stream, state.call);
  if (wait) receive(state);
}

// Waits for its gather in flight.
void ParameterBuckets::receive(State& state) {
  state.work.wait(runtime_.stream());
  state.work = {};
  if (!state.codes.defined()) return;
  codes_->decode(static_cast<size_t>(&state - states_.data()), state.codes, state.full);
  state.codes = {};
}

void ParameterBuckets::show(State& state) {
  for (const Bucket::Entry& entry : state.bucket->entries) {
    Tensor& value = entry.placed->parameter.value;
    value = state.full.slice(0, entry.begin, entry.size()).view(value.shape());
  }
}

void ParameterBuckets::hide(State& state) {
  for (size_t i = 0; i < state.absent.size(); ++i)
    state.bucket->entries[i].placed->parameter.value = state.absent[i];
}

void ParameterBuckets::drop(State& state) {
  MG_ASSERT(state.users == 0);
  state.work.wait(runtime_.stream());
  state.work = {};
  state.full = state.codes = Tensor();
  state.begin = -1;
  hide(state);
}

// The first layers are needed first, and are laid out last.
void ParameterBuckets::changed() {
  everything_ = false;
  if (std::ranges::any_of(states_, is_coded)) codes_->find_scales();
  for (size_t b = states_.size(); b-- > 0;) {
    State& state = states_[b];
    if (!gathers(state)) continue;
    if (by_span(state)) {
      drop(state);
    } else {
      gather(state, !overlap_ || state.bucket->outside_spans, true);
    }
  }
  if (overlap_ && !spans_.empty()) fetch(0, false);
}

void ParameterBuckets::gather_all() {
  if (everything_) return;
  everything_ = true;
  for (size_t b = states_.size(); b-- > 0;) {
    State& state = states_[b];
    if (by_span(state)) {
      drop(state);
      state.full =
          Tensor::empty(runtime_.arena(MemoryClass::parameters), {state.bucket->elements()},
                        state.bucket->type(), "all parameters");
      gather(state, true, false);
      show(state);
    } else if (is_coded(state)) {
      gather(state, true, false);
    } else {
      receive(state);
    }
  }
}

void ParameterBuckets::begin_step() {
  if (!everything_) return;
  everything_ = false;
  for (State& state : states_)
    if (by_span(state)) drop(state);
}

// Gathers a span's buckets or, without `wait`, begins to; returns false if an active span blocks
// their memory.
bool ParameterBuckets::fetch(size_t index, bool wait) {
  const SpanState& span = spans_[index];
  for (size_t i = 0; i < span.buckets.size(); ++i) {
    State& state = states_[span.buckets[i]];
    if (!by_span(state)) continue;
    const int64_t begin = span.begins[i], end = begin + state.bucket->elements();
    if (state.begin != begin && state.users == 0) {
      for (State& other : states_) {
        if (other.room != state.room || other.begin < 0 || other.begin >= end ||
            other.begin + other.bucket->elements() <= begin)
          continue;
        if (other.users > 0) {
          MG_ASSERT(!wait);
          return false;
        }
        drop(other);
      }
      drop(state);
      state.begin = begin;
      state.full = rooms_[state.room].memory.slice(0, begin, state.bucket->elements());
      gather(state, false, true);
    }
  }
  for (const size_t b : span.buckets) {
    if (!wait) break;
    receive(states_[b]);
  }
  return true;
}

// Forward visits layers in ascending order, backward in descending order; recompute ascends within
// a group of layers.
void ParameterBuckets::prefetch(size_t index, Pass pass) {
  const bool up = pass == Pass::forward || pass == Pass::evaluate ||
                  (pass == Pass::recompute && index == last_span_ + 1);
  if (up ? index + 1 < spans_.size() : index > 0) fetch(up ? index + 1 : index - 1, false);
}

void ParameterBuckets::enter(const megatron::Span& span, Pass pass) {
  if (everything_) return;
  const auto found = span_of_.find(span.name);
  if (found == span_of_.end()) return;
  const size_t index = found->second;
  fetch(index, true);
  for (const size_t b : spans_[index].buckets)
    if (by_span(states_[b]) && states_[b].users++ == 0) show(states_[b]);
  if (overlap_) prefetch(index, pass);
  last_span_ = index;
}

void ParameterBuckets::leave(const megatron::Span& span) {
  if (everything_) return;
  const auto found = span_of_.find(span.name);
  if (found == span_of_.end()) return;
  for (const size_t b : spans_[found->second].buckets) {
    State& state = states_[b];
    if (!by_span(state)) continue;
    MG_ASSERT(state.users > 0);
    if (--state.users == 0) hide(state);
  }
}

}  // namespace megatron::parallel
