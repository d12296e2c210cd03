// --device of commands that do not log a list of their settings.
#pragma once

#include "settings/runtime_settings.h"

namespace megatron::training {

// --device of measurements: auto, cuda or cpu.
void add_bench_device(Fields& fields, settings::RuntimeSettings& runtime);

// Call before any kernel: limits instructions to --instruction-set, and logs the device that `auto`
// was resolved to, with the reason, if there is something to report (settings/runtime_settings.h).
void begin_on_device(const settings::RuntimeSettings& runtime);

}  // namespace megatron::training
