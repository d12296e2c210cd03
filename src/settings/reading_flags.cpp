#include "settings/reading_flags.h"

namespace megatron::settings {

void add_reading_flags(Fields& fields, checkpoint::ReadingOptions& options) {
  fields.add_switch("ignore-surplus-tensors", &options.ignore_surplus, true,
                    "skip tensors of a Hugging Face directory that the model does not have, with a "
                    "warning that names them; by default they are an error");
}

}  // namespace megatron::settings
