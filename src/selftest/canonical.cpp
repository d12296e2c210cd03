#include "selftest/canonical.h"

#include <algorithm>
#include <bit>

namespace megatron::selftest {
namespace {

// Index on disk of element `index` of the logical order [..., out, in].
int64_t stored_index(const parallel::CanonicalTensor& part, int64_t index) {
  const std::vector<int64_t> strides = part.stored_strides();
  int64_t stored = 0;
  for (int d = part.global.rank(); d-- > 0; index /= part.global[d])
    stored += index % part.global[d] * strides[static_cast<size_t>(d)];
  return stored;
}

// Calls f(part, index on disk, index within the shard) for every element of a shard that belongs to
// a canonical tensor.
template <class F>
void for_each_element(const parallel::Shard& shard, F&& f) {
  parallel::for_each_run(*shard.placed, [&](const parallel::CanonicalTensor& part,
                                            int64_t canonical, int64_t local, int64_t size) {
    const int64_t begin = std::max(local, shard.begin),
                  end = std::min(local + size, shard.begin + shard.size());
    for (int64_t i = begin; i < end; ++i)
      f(part, stored_index(part, canonical + i - local), i - shard.begin);
  });
}

}  // namespace

void GatheredTensors::add(std::span<const parallel::Shard> shards, const TensorOf& tensor_of,
                          double divisor) {
  const std::lock_guard lock(mutex_);
  for (const parallel::Shard& shard : shards) {
    const Tensor tensor = tensor_of(shard);
    if (!tensor.defined()) continue;
    const std::vector<double> values = to_doubles(tensor);
    for (const parallel::CanonicalTensor& part : shard.placed->placement.tensors) {
      const auto elements = static_cast<size_t>(part.global.elements());
      tensors_[part.name].resize(elements);
      added_[part.name].resize(elements);
      differs_.try_emplace(part.name, false);
    }
    for_each_element(shard, [&](const parallel::CanonicalTensor& part, int64_t at, int64_t mine) {
      const auto i = static_cast<size_t>(at);
      const double value = values[static_cast<size_t>(mine)] / divisor;
      double& held = tensors_.at(part.name)[i];
      std::vector<bool>& added = added_.at(part.name);
      if (added[i] && std::bit_cast<uint64_t>(held) != std::bit_cast<uint64_t>(value))
        differs_[part.name] = true;
      added[i] = true;
      held = value;
    });
  }
}

std::vector<std::string> GatheredTensors::different() const {
  std::vector<std::string> names;
  for (const auto& [name, differs] : differs_)
    if (differs) names.push_back(name);
  return names;
}

std::vector<std::string> GatheredTensors::incomplete() const {
  std::vector<std::string> names;
  for (const auto& [name, added] : added_)
    if (std::ranges::find(added, false) != added.end()) names.push_back(name);
  return names;
}

TensorMap canonical(std::span<const parallel::Shard> shards, const TensorOf& tensor_of) {
  GatheredTensors gathered;
  gathered.add(shards, tensor_of);
  return std::move(gathered.tensors());
}

TensorMap canonical_values(std::span<const parallel::Shard> shards) {
  return canonical(shards, [](const parallel::Shard& shard) { return shard.value; });
}

TensorMap canonical_gradients(std::span<const parallel::Shard> shards, double divisor) {
  GatheredTensors gathered;
  gathered.add(shards, [](const parallel::Shard& shard) { return shard.gradient; }, divisor);
  return std::move(gathered.tensors());
}

}  // namespace megatron::selftest
