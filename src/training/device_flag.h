// --device of commands that log no list of their settings.
#pragma once

#include "settings/runtime_settings.h"

namespace megatron::training {

// --device of measurements: auto, cuda or cpu.
void add_bench_device(Fields& fields, settings::RuntimeSettings& runtime);

// Before any kernel: limits instructions to --instruction-set, and logs what `auto` became and why, where there is
// something to say (settings/runtime_settings.h).
void begin_on_device(const settings::RuntimeSettings& runtime);

}  // namespace megatron::training
