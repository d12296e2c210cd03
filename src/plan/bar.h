// Horizontal bars drawn as text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megatron::plan {

struct BarPart {
  std::string mark;  // one column wide
  int64_t size = 0;
};

// Draws the parts one after another, in cells proportional to their sizes (rounded by largest
// remainder, so that all cells are used). `whole` >= sum is the size of the full width; the rest is
// filled with `empty`.
std::string stacked_bar(const std::vector<BarPart>& parts, int64_t whole, size_t cells,
                        const std::string& empty);

}  // namespace megatron::plan
