// Sections of a plan's page; each ends with a line feed, or is empty if there is nothing to show.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/page.h"

namespace megatron::plan {

struct MemoryPart {
  std::string_view name;
  int64_t bytes = 0;
};
// The memory classes, then the host.
std::vector<MemoryPart> memory_parts(const MemoryUse& memory);

std::string derived_section(const Plan& plan);
std::string parameter_section(const Plan& plan);
std::string memory_section(const Plan& plan, const PageStyle& style);
std::string experts_section(const Plan& plan);
std::string flops_section(const Plan& plan);
std::string traffic_section(const Plan& plan);
std::string context_section(const Plan& plan);
std::string kernel_section(const Plan& plan);
std::string time_section(const Plan& plan);
std::string assumed_section(const Plan& plan);

// One line with step time, speed, share of the peak and the time of the whole run.
std::string time_line(const Plan& plan);

}  // namespace megatron::plan
