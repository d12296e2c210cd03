// The lines of a run on the console, with Megatron-LM's fields. A figure that is not known is n/a.
#pragma once

#include <string>

#include "training/log/record.h"

namespace megatron::training {

std::string console_line(const StepRecord& record, const RunRecord& run);
std::string console_line(const ValidationRecord& record);
// In one line: what would break or colour it is escaped.
std::string console_line(const SampleRecord& record);

}  // namespace megatron::training
