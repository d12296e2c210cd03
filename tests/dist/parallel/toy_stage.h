// A stage without a model: parameters of awkward sizes in spans, and gradients that depend on the
// values, so that a stale or missing value is detected.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <numeric>

#include "comm/async.h"
#include "dist/ranks.h"
#include "kernels/table.h"
#include "parallel/data_parallel.h"

namespace megatron::testing {

// Value in [-1, 1) with 24 bits.
inline float drawn(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>((x >> 40)) / 8388608.0f - 1;
}

struct ToyParameter {
  std::string name;
  Shape shape;
  std::vector<int> spans;  // indices
  int uses = 1;
  bool trainable = true, partial = false;
  std::optional<DType> type;         // if it differs from the stage's
  std::vector<int> use_stages = {};  // of a parameter that stages share
  int first_use = 0;
  std::vector<int> seeds;  // for the gradient of each use; default: 2 index + use
};

inline const std::vector<std::string> kToySpans = {"embedding", "layers.0", "layers.1", "layers.2",
                                                   "head"};
// Several sizes around a block of the norm (16384), a tied table and a frozen one.
inline std::vector<ToyParameter> toy_parameters() {
  return {{"embedding.word.weight", {130, 127}, {0, 4}, 2},
          {"embedding.position.weight", {3, 7}, {0}},
          {"layers.0.weight", {40, 500}, {1}},
          {"layers.0.bias", {33}, {1}, 1, true, true},
          {"layers.0.small", {2, 3, 4}, {1}},
          {"layers.1.weight", {32768 + 5}, {2}},
          {"layers.1.bias", {40}, {2}, 1, true, true},
          {"layers.1.frozen", {100}, {2}, 1, false},
          {"layers.2.weight", {16384}, {3}},
          {"layers.2.other", {16383}, {3}},
          {"layers.2.bias", {1}, {3}, 1, true, true},
          {"head.norm.weight", {65}, {4}}};
}

class ToyStage {
 public:
  ToyStage(Runtime& runtime, std::vector<ToyParameter> list, DType type = DType::f32,
           std::vector<std::string> spans = kToySpans)
      : runtime_(runtime), list_(std::move(list)), spans_(spans.size()) {
    const auto nowhere = Arena::make({DeviceKind::meta, 0}, MemoryClass::parameters);
    for (size_t s = 0; s < spans.size(); ++s) spans_[s].name = spans[s];
    for (size_t p = 0; p < list_.size(); ++p) {
      parallel::ParameterSpec& placed = placed_.emplace_back();
      placed.parameter.name = list_[p].name;
      placed.parameter.value =
          Tensor::empty(*nowhere, list_[p].shape, list_[p].type.value_or(type), list_[p].name);
      placed.parameter.uses.resize(static_cast<size_t>(list_[p].uses));
      placed.parameter.trainable = list_[p].trainable;
      if (list_[p].partial) placed.partial = parallel::RankGroup::tensor;
      placed.used_in.resize(list_[p].use_stages.size());
      placed.use_stages = list_[p].use_stages;
      placed.first_use = list_[p].first_use;
      placed.decay = p % 2 == 0;
      for (int use = static_cast<int>(list_[p].seeds.size()); use < list_[p].uses; ++use)
        list_[p].seeds.push_back(2 * static_cast<int>(p) + use);
      for (const int s : list_[p].spans)
        spans_[static_cast<size_t>(s)].parameters.push_back(&placed.parameter);
    }
  }

  std::vector<parallel::ParameterSpec*> placed() {
    std::vector<parallel::ParameterSpec*> pointers;
    for (parallel::ParameterSpec& p : placed_) pointers.push_back(&p);
    return pointers;
  }
  std::vector<const Span*> spans() const {
    std::vector<const Span*> pointers;
    for (const Span& s : spans_) pointers.push_back(&s);
    return pointers;
  }
  parallel::ParameterSpec& operator[](size_t p) { return placed_[p]; }
  size_t size() const { return placed_.size(); }

  // Element i of a parameter, the same on every holder.
  static float initial(const std::string& name, int64_t i) {
    return drawn(std::hash<std::string>()(name), static_cast<uint64_t>(i));
  }
  void fill(std::span<const parallel::Shard> shards) const {
    for (const parallel::Shard& shard : shards) {
      std::vector<float> values(static_cast<size_t>(shard.size()));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = initial(shard.placed->parameter.name, shard.begin + static_cast<int64_t>(i));
      Tensor value = shard.value;
      copy_from(value, std::span<const float>(values));
    }
  }

  // Calls a stage's listeners as forward and backward of a micro-batch do. `sample` determines the
  // gradients, and `part` determines those of partial parameters.
  void run(parallel::DataParallel& dp, int sample, int part = 0) {
    for (size_t s = 0; s < spans_.size(); ++s) {
      within(dp, s, Pass::forward, [&] {
        if (s + 1 < spans_.size()) return;
        for (Parameter* p : spans_[s].parameters)  // the loss has already made it
          if (p->uses.size() == 2) give(dp, *p, 1, sample, part);
      });
    }
    for (size_t s = spans_.size(); s-- > 0;) {
      within(dp, s, Pass::recompute, [] {});
      within(dp, s, Pass::backward, [&] {
        for (size_t i = spans_[s].parameters.size(); i-- > 0;) {
          Parameter& p = *spans_[s].parameters[i];
          if (p.trainable && !(p.uses.size() == 2 && s > 0)) give(dp, p, 0, sample, part);
        }
      });
    }
  }

  // All values that a span could use, in the order of use.
  uint64_t seen() const { return seen_; }
  // Called between a span's enter and leave.
  std::function<void(size_t span, Pass pass)> at_work = [](size_t, Pass) {};

  std::vector<float> gradient(size_t index, size_t use, int sample, int part,
                              const std::vector<float>& values) const {
    const auto seed = static_cast<uint64_t>(list_[index].seeds[use]);
    const uint64_t key = seed * 1000 + static_cast<uint64_t>(sample) * 10 +
                         (list_[index].partial ? static_cast<uint64_t>(part) : 0);
    std::vector<float> list(values.size());
    for (size_t i = 0; i < values.size(); ++i)
      list[i] = drawn(key, i) * (i % 5 == 0 ? 100.0f : 1.0f) + 0.01f * values[i];
    return list;
  }

  void give(parallel::DataParallel& dp, Parameter& p, size_t use, int sample, int part) {
    Parameter::Use& u = p.uses[use];
    if (!u.grad.defined()) dp.gradient_begins(p);
    size_t index = 0;
    while (&placed_[index].parameter != &p) ++index;
    Tensor g =
        Tensor::empty(runtime_.arena(MemoryClass::activations), u.grad.shape(), DType::f32, "g");
    if (g.device().has_data())
      copy_from(g, std::span<const float>(gradient(index, use, sample, part, to_floats(p.value))));
    const kernels::Table& kernels = kernels::table(runtime_.stream());
    if (u.started) {
      kernels.add({u.grad, g, u.grad}, runtime_.stream());
    } else {
      kernels.copy({g, u.grad}, runtime_.stream());
    }
    u.started = true;
    const int before = p.micro_batches_final();
    ++u.micro_batches;
    if (p.micro_batches_final() > before) dp.gradient_final(p, before);
  }

 private:
  void within(parallel::DataParallel& dp, size_t s, Pass pass, const std::function<void()>& work) {
    dp.enter(spans_[s], pass);
    for (const Parameter* p : spans_[s].parameters) {
      if (!runtime_.device().has_data()) break;
      for (const float value : to_floats(p->value))
        seen_ = (seen_ ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3u;
    }
    at_work(s, pass);
    work();
    dp.leave(spans_[s], pass);
  }

  Runtime& runtime_;
  std::vector<ToyParameter> list_;
  std::deque<parallel::ParameterSpec> placed_;
  std::vector<Span> spans_;
  uint64_t seen_ = 0xcbf29ce484222325u;
};

// Groups of a data-parallel run: `instances` times the ranks of the world / instances.
struct ToyGroups {
  std::unique_ptr<comm::Group> shards, instances, async, instances_async;

  ToyGroups(
      comm::Group& world, int count,
      const std::function<std::unique_ptr<comm::Group>(std::unique_ptr<comm::Group>)>& wrap = {}) {
    const int per = world.size() / count, rank = world.rank();
    const auto of_shards = [&] { return world.split(rank / per, rank, per); };
    const auto of_instances = [&] { return world.split(rank % per, rank, count); };
    const auto wrapped = [&](std::unique_ptr<comm::Group> group) {
      return wrap ? wrap(std::move(group)) : std::move(group);
    };
    shards = wrapped(of_shards());
    instances = wrapped(of_instances());
    async = comm::async(wrapped(of_shards()));
    instances_async = comm::async(wrapped(of_instances()));
  }
  parallel::DataParallelGroups groups() const {
    return {.dense = {.shards = shards.get(),
                      .instances = instances.get(),
                      .async = async.get(),
                      .instances_async = instances_async.get()}};
  }
};

inline constexpr std::array kShardings = {parallel::Sharding::none, parallel::Sharding::optimizer,
                                          parallel::Sharding::gradients,
                                          parallel::Sharding::parameters};

}  // namespace megatron::testing
