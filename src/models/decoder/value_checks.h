// Limits of a decoder's sizes, and their checks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "nn/rotary.h"

namespace megatron::models {

// Far above any model, and small enough that no product of sizes exceeds 63 bits.
inline constexpr int64_t kMaxLayers = 1 << 16, kMaxHidden = 1 << 20, kMaxWidth = 1 << 24,
                         kMaxHeads = 1 << 14, kMaxHeadSize = 1 << 16;

// Throw Error naming the flag, the value and what it must be.
void check_size(int64_t value, int64_t limit, std::string_view flag);
void check_number(double value, bool good, std::string_view flag, std::string_view wanted);
// name: of the table in the model.
void check_rotary(const std::string& name, const nn::RotaryConfig& rotary, int64_t head_size);

}  // namespace megatron::models
