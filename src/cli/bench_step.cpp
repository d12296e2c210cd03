#include "base/log.h"
#include "bench/step.h"
#include "cli/command.h"

namespace megatron::cli {
namespace {

// The flags' values, over the defaults of the preset among them. fields: become those of `step`.
std::optional<int> read_flags(bench::StepBench& step, Fields& fields, const Arguments& arguments) {
  std::vector<std::string> notes;
  const auto read = [&](bench::StepBench& into) {
    fields = into.fields();
    const PrintConfig print{.check =
                                [&] {
                                  into.use_given_data();
                                  into.check();
                                },
                            .fields = into.settings.fields().all().size()};
    const auto code = parse_training(
        "megatron bench step [train flags]",
        "Times the training step of `megatron train` (data, clipping and optimizer included) "
        "against the estimates that `megatron plan` makes of it, the machine's "
        "matrix-product peak, sampled around the steps, and the "
        "step's floor. On a CPU: each product at the best rate of its shape among plain, packed, "
        "transposed and our own calls in this run, other kernels at the copy bandwidth. On a GPU: "
        "each kernel of the step by itself, its products at the peak, the others' bytes at the "
        "copy bandwidth; tokens a second, MFU of the data sheet's peak, clocks and power. Without "
        "flags: GPT-2 124M, sequence 1024, micro-batch 4, fp32 (--bf16 for bf16).",
        fields, arguments, notes, print);
    if (!code) into.use_given_data();
    return code;
  };
  bench::StepBench first;
  first.set_defaults(DeviceKind::cpu);
  if (const auto code = read(first)) return code;
  step.set_defaults(first.settings.runtime.device_kind());
  const auto code = read(step);
  for (const std::string& note : notes) log::info("{}", note);
  return code;
}

}  // namespace

int bench_step(const Arguments& arguments) {
  bench::StepBench step;
  Fields fields;
  if (const auto code = read_flags(step, fields, arguments)) return *code;
  return naming_places(fields, [&] { return bench::measure_step(step); });
}

}  // namespace megatron::cli
