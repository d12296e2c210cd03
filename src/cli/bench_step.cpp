#include "base/log.h"
#include "bench/step.h"
#include "cli/command.h"

namespace megatron::cli {
namespace {

// Reads the flags into `step`, over the defaults of the preset that they name. fields: set to those
// of `step`.
std::optional<int> read_flags(bench::StepBench& step, Fields& fields, const Arguments& arguments) {
  std::vector<std::string> notes;
  const auto read = [&](bench::StepBench& into) {
    fields = into.fields();
    const PrintConfig print{.check =
                                [&] {
                                  into.settle();
                                  into.check();
                                },
                            .fields = into.settings.fields().all().size()};
    const auto code = parse_training(
        "megatron bench step [train flags]",
        "Times the training step of `megatron train` (data, clipping and optimizer included) and "
        "compares it with the estimates of `megatron plan`, with the machine's GEMM peak, "
        "sampled around the steps, and with the step's floor, the least time it could take. On a "
        "CPU the floor is each GEMM at the best rate measured for its shape (oneDNN plain, "
        "packed and transposed, and this program's own) plus the other kernels at the copy "
        "bandwidth. On a GPU: each kernel of the step on its own, GEMMs at the peak, the bytes "
        "of the others at the copy bandwidth; also tokens/s, MFU against the data sheet's peak, "
        "clocks and power. Default: GPT-2 124M, sequence length 1024, micro-batch size 4, fp32 "
        "(--bf16 for bf16).",
        fields, arguments, notes, print);
    if (!code) into.settle();
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
