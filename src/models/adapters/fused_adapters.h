// Reads adapters that a directory stores for a parameter of all experts of a layer
// (expert_layout.h) into the adapters of experts that are modules.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/held_tensor.h"
#include "checkpoint/model_directory.h"
#include "models/adapters/lora_config.h"

namespace megatron::models {

class FusedAdapters {
 public:
  // Looks for the adapters' tensors of experts in `whole` that the directory does not have, and
  // replaces those that it stores fused. Both halves of [gate | up] then read the same A. Throws
  // Error naming tensors that do not fit.
  FusedAdapters(const LoraConfig& config, const checkpoint::ModelDirectory& directory,
                std::vector<checkpoint::WholeTensor>& whole);

  // Places a parameter whose tensors were replaced in the stored tensor.
  void replace(parallel::Placement& placement) const;

 private:
  // An adapter's a [E,r,in] or b [E,out,r] in the stored tensor, and the first of the rows of b.
  struct Stored {
    parallel::CanonicalTensor tensor;
    int64_t row = 0;
  };
  std::map<std::string, Stored> stored_;  // by the names of all experts' tensors
};

}  // namespace megatron::models
