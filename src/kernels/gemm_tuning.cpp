#include "kernels/gemm_tuning.h"

#include "device/cuda_plugin.h"

namespace megatron::kernels {

GemmTuning& gemm_tuning(Stream& stream) {
  using Find = GemmTuning* (*)(Stream&);
  static const auto find = reinterpret_cast<Find>(cuda_symbol("megatron_cuda_gemm_tuning"));
  return *find(stream);
}

}  // namespace megatron::kernels
