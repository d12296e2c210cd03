// Horizontal bars of text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megatron::plan {

struct BarPart {
  std::string mark;  // one column wide
  int64_t size = 0;
};

// The parts one after another, in cells in proportion to their sizes (rounded so that all cells are
// taken: largest remainder). `whole` >= sum is what the full width stands for; the rest is filled
// with `empty`.
std::string stacked_bar(const std::vector<BarPart>& parts, int64_t whole, size_t cells,
                        const std::string& empty);

}  // namespace megatron::plan
