// A plan for people.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace megatron::plan {

struct PageStyle {
  bool blocks = true;  // bars of Unicode blocks; else of letters
};

// Tables and bars, at most 96 columns wide unless a name is longer; ends with a line feed. Layers
// with equal parameters are one row; of the kernels the most expensive ones are shown. What is not
// known is "n/a".
std::string page(const Plan& plan, const PageStyle& style);

// The short form: three to six lines.
std::vector<std::string> summary(const Plan& plan);

}  // namespace megatron::plan
