// The flag that controls how directories of weights are read.
#pragma once

#include "base/fields.h"
#include "checkpoint/model_directory.h"

namespace megatron::settings {

// `options` outlives `fields`.
void add_reading_flags(Fields& fields, checkpoint::ReadingOptions& options);

}  // namespace megatron::settings
