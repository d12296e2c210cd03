#include "nn/coded_products.h"

#include <algorithm>
#include <charconv>
#include <ranges>

#include "device/cuda_library.h"
#include "device/cuda_plugin.h"

namespace megatron::nn {
namespace {

struct TensorCores {
  int lowest = 90, highest = 90;  // compute capabilities of the GPUs: 9.0
  bool scales_blocks = true;      // by the version of cuBLASLt
};

// "12.9.1" is at least 12.9; so is an unknown version.
bool is_12_9(const std::string& version) {
  int major = 0, minor = 0;
  const char* const end = version.data() + version.size();
  const auto [dot, error] = std::from_chars(version.data(), end, major);
  if (error != std::errc() || dot == end) return true;
  std::from_chars(dot + 1, end, minor);
  return major > 12 || (major == 12 && minor >= 9);
}

TensorCores found() {
  const CudaState& cuda = cuda_state();
  if (cuda.plugin == nullptr) return {};
  const auto capability = [](const CudaDevice& gpu) { return gpu.major * 10 + gpu.minor; };
  const auto [lowest, highest] =
      std::ranges::minmax(cuda.plugin->devices() | std::views::transform(capability));
  return {lowest, highest, is_12_9(cuda_library("cuBLASLt").version)};
}

}  // namespace

bool multiplies_codes(LowPrecisionRecipe recipe) {
  static const TensorCores cores = found();
  switch (recipe) {
    case LowPrecisionRecipe::tensorwise:
    case LowPrecisionRecipe::delayed: return cores.lowest >= 89;
    case LowPrecisionRecipe::blockwise:
      return cores.lowest == 90 && cores.highest == 90 && cores.scales_blocks;
    case LowPrecisionRecipe::mxfp8:
    case LowPrecisionRecipe::nvfp4: break;
  }
  return cores.lowest >= 100 && cores.scales_blocks;
}

}  // namespace megatron::nn
