// Prints a plan for people.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace megatron::plan {

struct PageStyle {
  bool blocks = true;  // bars of Unicode blocks; else of letters
};

// Tables and bars, at most 96 columns wide unless a name is longer; ends with a line feed. Layers
// with equal parameters share a row; only the most expensive kernels are shown. Unknown values are
// "n/a".
std::string page(const Plan& plan, const PageStyle& style);

// Short form of the page: three to six lines.
std::vector<std::string> summary(const Plan& plan);

}  // namespace megatron::plan
