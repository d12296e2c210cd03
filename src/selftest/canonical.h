// Parameters, gradients and optimizer states by their names on disk, so that layouts and files can
// be compared.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "models/model.h"
#include "parallel/placement.h"

namespace megatron::selftest {

using TensorMap = models::PlainTensors;

// Returns a rank's part of the canonical tensors. tensor_of returns a tensor on the host with as
// many elements as the shard; if it is undefined the shard is skipped.
using TensorOf = std::function<Tensor(const parallel::Shard&)>;
TensorMap canonical(std::span<const parallel::Shard> shards, const TensorOf& tensor_of);
TensorMap canonical_values(std::span<const parallel::Shard> shards);
// The gradients, divided by `divisor`.
TensorMap canonical_gradients(std::span<const parallel::Shard> shards, double divisor);

// Canonical tensors gathered from ranks that are threads of this process, each of which adds its
// shards. Replicas add the same elements; whether they agree bit for bit is recorded.
class GatheredTensors {
 public:
  void add(std::span<const parallel::Shard> shards, const TensorOf& tensor_of, double divisor = 1);
  // Valid after all ranks have added their shards.
  TensorMap& tensors() { return tensors_; }
  // Names of tensors whose replicas differ, and of tensors with missing elements.
  std::vector<std::string> different() const;
  std::vector<std::string> incomplete() const;

 private:
  std::mutex mutex_;
  TensorMap tensors_;
  std::map<std::string, std::vector<bool>> added_;
  std::map<std::string, bool> differs_;
};

}  // namespace megatron::selftest
