// Adapters of a served model, of which each request chooses one.
#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint/model_directory.h"
#include "inference/adapter.h"

namespace megatron::training {

// Loads the tensors of the adapter in a directory, which stands for the whole model. max_rank: the
// largest rank allowed. Throws Error naming what does not fit the model, tensors that the model
// does not use, and what inference::Adapter refuses.
std::shared_ptr<const inference::Adapter> load_adapter(const checkpoint::ModelDirectory& directory,
                                                       const Device& device, DType type,
                                                       int64_t max_rank);

}  // namespace megatron::training
