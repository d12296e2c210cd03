// --device of commands that log no list of their settings.
#pragma once

#include "training/runtime_settings.h"

namespace megatron::training {

// --device of measurements: auto, cuda or cpu.
void add_bench_device(Fields& fields, RuntimeSettings& runtime);

// Logs what `auto` became and why, where there is something to say
// (training/runtime_settings.h).
void tell_device(const RuntimeSettings& runtime);

}  // namespace megatron::training
