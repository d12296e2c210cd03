#include <fmt/core.h>

#include "base/error.h"
#include "bench/bench.h"
#include "bench/device_text.h"
#include "plan/machine_rates.h"
#include "settings/runtime_settings.h"
#include "training/device_flag.h"

namespace megatron::bench {

int measure_gemm(const ReadFlags& read) {
  settings::RuntimeSettings runtime_settings;
  bool bf16 = false;
  double seconds = 5;
  Fields f;
  f.add_switch("bf16", &bf16, true, "compute in bfloat16 instead of fp32");
  f.add("seconds", &seconds, "seconds to measure");
  training::add_bench_device(f, runtime_settings);
  f.add("threads", &runtime_settings.threads, "CPU threads; default all cores");
  if (const auto code =
          read("megatron bench gemm [flags]",
               "Measures the machine's peak GEMM rate, which other speeds are compared with.", f)) {
    return *code;
  }
  MG_CHECK(seconds > 0 && seconds <= 3600, "--seconds is {}; it must lie in (0, 3600]", seconds);
  runtime_settings.check();
  training::begin_on_device(runtime_settings);
  const Device device = runtime_settings.device_value();
  Runtime runtime(device, runtime_settings.threads_per_rank());
  const DType type = bf16 ? DType::bf16 : DType::f32;
  const auto shapes = plan::sample_gemm_rates(runtime, type, seconds);
  fmt::print("{:>6} {:>6} {:>6}  {:>10}\n", "M", "N", "K", "GFLOP/s");
  for (const auto& s : shapes)
    fmt::print("{:>6} {:>6} {:>6}  {:>10.1f}\n", s.m, s.n, s.k, s.rate * 1e-9);
  const double peak = plan::best_rate(shapes);
  fmt::print("{} GEMM peak {:.3f} TFLOP/s{} with {}\n", name(type), peak * 1e-12,
             data_sheet_share(device, type, peak), device_text(device, runtime.pool().size()));
  return 0;
}

}  // namespace megatron::bench
