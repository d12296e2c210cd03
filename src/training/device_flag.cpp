#include "training/device_flag.h"

#include "base/log.h"

namespace megatron::training {

void add_bench_device(Fields& fields, settings::RuntimeSettings& runtime) {
  fields.add("device", &runtime.device, {"auto", "cuda", "cpu"},
             "auto: cuda if a GPU is found, else cpu");
  runtime.add_instruction_set(fields);
}

void begin_on_device(const settings::RuntimeSettings& runtime) {
  runtime.limit_instruction_set();
  const auto note = runtime.device_note();
  if (note) log::info("--device {}: {}", note->value, note->cause);
}

}  // namespace megatron::training
