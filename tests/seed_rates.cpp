// seed_rates CACHE PROGRAM...: writes rates of this machine into a cache folder, as if earlier runs
// of the programs had measured them. On a busy machine no run keeps its rates, so tests, which are
// many short runs, would spend most of their time on measuring. Tests that measure use their own
// folders.
#include <fmt/core.h>

#include <vector>

#include "device/cuda_plugin.h"
#include "plan/kept_rates.h"

namespace megatron::plan {
namespace {

constexpr double kFlops = 1e11, kBytes = 1e10;  // a second

void seed(const std::string& folder, const std::string& program) {
  const auto keep = [&](const std::string& what, Device device, int threads, double value) {
    kept_rate({.folder = folder, .renew = true}, rate_key(what, device, threads, program),
              [&] { return Rate{.value = value}; });
  };
  std::vector<Device> devices = {{DeviceKind::cpu, 0}};
  if (cuda_state().plugin != nullptr) devices.push_back({DeviceKind::cuda, 0});
  for (const Device device : devices)
    for (const int threads : {1, 2, 4, 8}) {
      for (const char* type : {"f32", "bf16", "f16"}) {
        keep(fmt::format("gemm {}", type), device, threads, kFlops);
        keep(fmt::format("library gemm {}", type), device, threads, kFlops);
      }
      keep("copy", device, threads, kBytes);
    }
}

}  // namespace
}  // namespace megatron::plan

int main(int count, char** arguments) {
  for (int i = 2; i < count; ++i)
    megatron::plan::seed(std::string(arguments[1]) + "/megatron/rates", arguments[i]);
}
