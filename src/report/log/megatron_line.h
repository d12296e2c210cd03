// Lines that Megatron-LM prints for a step and for an evaluation, for --log-format megatron, so
// that scripts that read its logs can read these.
#pragma once

#include <string>

#include "report/log/record.h"

namespace megatron::report {

// time: seconds since 1970, printed in the machine's time zone. The loss is the mean over the
// interval's steps that changed the weights; as in Megatron-LM it is omitted if there were none.
std::string megatron_line(const StepRecord& record, const RunRecord& run, double time);

// Three lines; the first and the last are rules.
std::string megatron_lines(const ValidationRecord& record);

}  // namespace megatron::report
