// What the text of --pipeline-model-parallel-layout says besides the layers of each part.
#pragma once

#include <cstdint>
#include <string>

namespace megatron::parallel {

// Number of depths of multi-token prediction (m) in a layout. They belong to the part with the
// head, with or without symbols of their own.
int64_t predictions_of_layout(const std::string& layout);

}  // namespace megatron::parallel
