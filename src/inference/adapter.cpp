#include "inference/adapter.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <iterator>

#include "base/error.h"
#include "kernels/table.h"
#include "models/adapters/lora_config.h"
#include "nn/latent_attention.h"

namespace megatron::inference {
namespace {

// Parameters that are trained: the adapter's own, and those of the model that it replaces.
std::vector<parallel::ParameterSpec*> trained(const models::Stage& stage) {
  std::vector<parallel::ParameterSpec*> tensors;
  std::ranges::copy_if(stage.parameters(), std::back_inserter(tensors),
                       [](const auto* spec) { return spec->parameter.trainable; });
  return tensors;
}

std::unique_ptr<models::Stage> part_of(const models::Model& model, Runtime& runtime, DType type,
                                       const EngineGroups* groups) {
  return groups != nullptr ? groups->part(model, runtime, type, 0)
                           : model.build(runtime, type, 0, {.layers = model->num_layers()}, {});
}

// The same on all ranks, of which some may have only some of the tensors.
bool only_adds_to_products(const models::Model& model) {
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const auto whole = part_of(model, shapes_only, DType::f32, nullptr);
  size_t added = 0;
  for (const auto& [matrix, low_rank] : whole->adapters()) {
    if (low_rank.has_magnitudes()) return false;
    // Applied to cached latents, whose rows are not those of the pass.
    if (matrix.ends_with(nn::kLatentKeysAndValues)) return false;
    ops::for_each_weight(low_rank, [&](const Weight&) { ++added; });
  }
  for (const auto& [matrices, experts] : whole->expert_adapters())
    added += 2 * experts.parts.size();  // a and b
  return added == trained(*whole).size();
}

}  // namespace

int64_t adapter_bytes(const models::Model& model, DType type, const EngineGroups* groups) {
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const auto stage = part_of(model, shapes_only, type, groups);
  const Arena& arena = shapes_only.arena(MemoryClass::parameters);
  const int64_t before = arena.in_use();
  parallel::allocate(trained(*stage), shapes_only);
  return arena.in_use() - before;
}

struct AdapterMemory::Places {
  std::vector<std::unique_ptr<Runtime>> all;
  int64_t bytes = 0;  // of each
  std::mutex mutex;
  std::condition_variable released;
  std::vector<Runtime*> free;
};

AdapterMemory::AdapterMemory(const Device& device, int64_t adapters, int64_t bytes_of_one)
    : places_(std::make_shared<Places>()) {
  places_->bytes = bytes_of_one;
  for (int64_t i = 0; i < adapters; ++i) {
    auto& runtime = places_->all.emplace_back(std::make_unique<Runtime>(device, 1));
    Arena& arena = runtime->arena(MemoryClass::parameters);
    arena.set_limit(bytes_of_one);
    // What an arena has allocated once stays its own; host memory is used when it is written.
    const Tensor all = Tensor::empty(arena, {bytes_of_one / size_of(DType::f32)}, DType::f32,
                                     "memory of an adapter");
    kernels::table(runtime->stream()).fill({.out = all, .value = 0}, runtime->stream());
    runtime->stream().synchronize();
    places_->free.push_back(runtime.get());
  }
}

int64_t AdapterMemory::bytes_of_one() const { return places_->bytes; }
int64_t AdapterMemory::adapters() const { return std::ssize(places_->all); }

std::shared_ptr<Runtime> AdapterMemory::take(bool waits) {
  std::unique_lock lock(places_->mutex);
  if (waits) places_->released.wait(lock, [&] { return !places_->free.empty(); });
  if (places_->free.empty()) return nullptr;
  Runtime* const one = places_->free.back();
  places_->free.pop_back();
  return {one, [places = places_](Runtime* given) {
            {
              const std::lock_guard guard(places->mutex);
              places->free.push_back(given);
            }
            places->released.notify_one();
          }};
}

uint64_t Adapter::next_number() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

Adapter::Adapter(const models::Model& model, std::shared_ptr<Runtime> memory, DType type,
                 uint64_t number, const EngineGroups* groups)
    : number_(number),
      model_(model),
      runtime_(std::move(memory)),
      shapes_only_({DeviceKind::meta, 0}, 1),
      stage_(part_of(model, shapes_only_, type, groups)),
      shares_passes_(only_adds_to_products(model)) {
  for (const auto& [matrix, low_rank] : stage_->adapters()) of_matrix_.emplace(matrix, &low_rank);
  for (const auto& [matrices, experts] : stage_->expert_adapters())
    of_experts_.emplace(matrices, &experts);
  parallel::allocate(tensors(), *runtime_);
}

std::vector<parallel::ParameterSpec*> Adapter::tensors() const { return trained(*stage_); }

int64_t Adapter::bytes() const {
  int64_t sum = 0;
  for (const parallel::ParameterSpec* spec : tensors()) sum += spec->parameter.value.bytes();
  return sum;
}

std::unique_ptr<models::Stage> Adapter::over(const models::Stage& base, Runtime& runtime,
                                             const parallel::ModelRanks& ranks) const {
  const models::Model whole = base.model()->with(
      {.adapter = std::make_shared<const models::LoraConfig>(*model_->adapter())});
  const DType type = base.parameters()[0]->parameter.value.dtype();
  auto stage = whole.build(runtime, type, 0, base.part(), ranks);
  std::map<std::string_view, const Tensor*> values;
  for (const auto& tensors : {models::tensors_of(base), tensors()})
    for (const parallel::ParameterSpec* spec : tensors)
      values[spec->parameter.name] = &spec->parameter.value;
  for (parallel::ParameterSpec* spec : models::tensors_of(*stage)) {
    const auto found = values.find(spec->parameter.name);
    MG_CHECK(found != values.end() && found->second->shape() == spec->parameter.value.shape(),
             "the adapter does not belong to the model: '{}' has another shape",
             spec->parameter.name);
    spec->parameter.value = found->second->unowned();
  }
  return stage;
}

void AdaptersByNumber::add(std::shared_ptr<const Adapter> adapter) {
  const std::lock_guard lock(mutex_);
  adapters_[adapter->number()] = std::move(adapter);
}

void AdaptersByNumber::remove(uint64_t number) {
  const std::lock_guard lock(mutex_);
  adapters_.erase(number);
}

std::shared_ptr<const Adapter> AdaptersByNumber::find(uint64_t number) const {
  if (number == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  return adapters_.at(number);
}

const ops::LowRank* Adapter::find(std::string_view matrix) const {
  const auto found = of_matrix_.find(matrix);
  return found == of_matrix_.end() ? nullptr : found->second;
}

const ops::ExpertLowRank* Adapter::find_of_experts(std::string_view matrices) const {
  const auto found = of_experts_.find(matrices);
  return found == of_experts_.end() ? nullptr : found->second;
}

void RowAdapters::append(const Adapter* adapter, int64_t count) {
  const int64_t first = std::exchange(rows_, rows_ + count);
  if (adapter == nullptr || !adapter->shares_passes()) return;
  if (!ranges_.empty() && ranges_.back().adapter == adapter &&
      ranges_.back().first + ranges_.back().count == first) {
    ranges_.back().count += count;
  } else {
    ranges_.push_back({.adapter = adapter, .first = first, .count = count});
  }
}

void RowAdapters::add(Tape& tape, const Weight& w, const Tensor& x, const Tensor& y) const {
  std::vector<ops::AdaptedRows> rows;
  for (const auto& [adapter, first, count] : ranges_)
    if (const ops::LowRank* low_rank = adapter->find(w.parameter->name)) {
      MG_ASSERT(x.size(0) == rows_);  // the head alone reads other rows, and has no adapter
      rows.push_back({low_rank, x.slice(0, first, count), y.slice(0, first, count)});
    }
  ops::add_low_rank(tape, rows);
}

void RowAdapters::for_each_range(const Weight& w, const OfRows& f) const {
  for (const auto& [adapter, first, count] : ranges_)
    if (adapter->find(w.parameter->name) != nullptr) f(first, count);
}

void RowAdapters::for_each_expert_range(const Weight& up, const Weight& down,
                                        const OfExpertRows& f) const {
  const auto adds = [&](const Adapter& adapter) {
    return adapter.find_of_experts(up.parameter->name) != nullptr ||
           adapter.find_of_experts(down.parameter->name) != nullptr;
  };
  if (std::ranges::none_of(ranges_, [&](const Range& range) { return adds(*range.adapter); }))
    return;
  int64_t next = 0;  // rows before it are in ranges
  const auto plain_until = [&](int64_t end) {
    if (end > next) f(next, end - next, nullptr, nullptr);
  };
  for (const auto& [adapter, first, count] : ranges_) {
    if (!adds(*adapter)) continue;
    plain_until(first);
    f(first, count, adapter->find_of_experts(up.parameter->name),
      adapter->find_of_experts(down.parameter->name));
    next = first + count;
  }
  plain_until(rows_);
}

}  // namespace megatron::inference
