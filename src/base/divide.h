// Division of sizes, rounded up: a >= 0, b > 0, and a + b must not overflow.
#pragma once

#include <cstdint>

namespace megatron {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t unit) { return ceil_div(a, unit) * unit; }

}  // namespace megatron
