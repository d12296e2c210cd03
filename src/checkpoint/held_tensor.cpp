#include "checkpoint/held_tensor.h"

#include <set>

#include "base/error.h"

namespace megatron::checkpoint {

std::vector<HeldTensor> held(std::span<parallel::ParameterSpec* const> parameters) {
  std::vector<HeldTensor> tensors;
  for (const parallel::ParameterSpec* placed : parameters) {
    const Tensor& value = placed->parameter.value;
    tensors.push_back({"", &placed->placement, value, value.shape(), 0});
  }
  return tensors;
}

std::vector<HeldTensor> held(std::span<const parallel::Shard> shards) {
  std::vector<HeldTensor> tensors;
  for (const parallel::Shard& shard : shards) {
    tensors.push_back({"", &shard.placed->placement, shard.value,
                       shard.placed->parameter.value.shape(), shard.begin});
  }
  return tensors;
}

std::vector<WholeTensor> whole_tensors(std::span<const HeldTensor> undivided) {
  std::vector<WholeTensor> tensors;
  std::set<std::string> names;
  for (const HeldTensor& tensor : undivided) {
    MG_ASSERT(tensor.value.defined() && tensor.placement != nullptr);
    for (const parallel::CanonicalTensor& part : tensor.placement->tensors) {
      const std::string stored = tensor.prefix + part.name;
      if (names.insert(stored).second)
        tensors.push_back({stored, part.stored_shape(), tensor.value.dtype()});
    }
  }
  return tensors;
}

std::vector<WholeTensor> whole_tensors(std::span<parallel::ParameterSpec* const> undivided) {
  return whole_tensors(held(undivided));
}

}  // namespace megatron::checkpoint
