// The lines that Megatron-LM prints of a step and of an evaluation, for --log-format megatron:
// scripts that read its logs read these.
#pragma once

#include <string>

#include "report/log/record.h"

namespace megatron::report {

// time: seconds since 1970, printed in the machine's time zone. The loss is the mean of the interval's
// steps that changed the weights; like there it is left out where none did.
std::string megatron_line(const StepRecord& record, const RunRecord& run, double time);

// Three lines, the first and the last of them a rule.
std::string megatron_lines(const ValidationRecord& record);

}  // namespace megatron::report
