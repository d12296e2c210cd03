// Model directories with weights of 8 bits.
#pragma once

#include <functional>
#include <string>

#include "checkpoint/model_directory.h"

namespace megatron::training {

struct QuantizedSave {
  int64_t quantized = 0, kept = 0;            // tensors
  int64_t bytes_before = 0, bytes_after = 0;  // of all weights
};

// Writes `directory` to the new directory `path` with the weights of linear layers and experts in
// FP8 as DeepSeek-V3 is published (checkpoint/fp8_tensor.h): e4m3 and, for 128 x 128 elements, an
// f32 scale, a power of two, so that the largest element goes to (224, 448]. All other tensors, and
// files that are not weights, stay; config.json gets a quantization_config that lists the other
// matrices. progress: bytes written and their total. Throws Error, and leaves nothing behind, for
// an adapter, for weights that are quantized already, for tensors that are missing, of another
// shape or infinite, and for a family that stores matrices in another form.
QuantizedSave save_quantized(const checkpoint::ModelDirectory& directory, const std::string& path,
                             int threads, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace megatron::training
