#include "kernels/cuda/products/tuning.h"

#include <algorithm>
#include <limits>

#include "device/cuda/runtime_call.h"
#include "device/cuda/timer.h"

namespace megatron::kernels::cuda {

// Each round times all algorithms, so that a falling clock rate affects all of them.
size_t fastest(const std::vector<cublasLtMatmulAlgo_t>& algorithms, const Attempt& attempt,
               megatron::cuda::CudaStream& stream) {
  constexpr int kRounds = 4;
  constexpr double kNever = std::numeric_limits<double>::infinity(), kClearly = 0.98;
  std::vector<size_t> taken;
  for (size_t i = 0; i < algorithms.size(); ++i)
    if (attempt(algorithms[i])) taken.push_back(i);  // also loads its kernels
  megatron::cuda::StreamTimer timer(stream);
  std::vector<double> seconds(algorithms.size(), kNever);
  for (int round = 0; round < kRounds; ++round) {
    for (const size_t i : taken) {
      timer.begin();
      const bool queued = attempt(algorithms[i]);
      const double time = timer.end();
      if (queued) seconds[i] = std::min(seconds[i], time);
    }
  }
  size_t best = 0;
  for (size_t i = 1; i < seconds.size(); ++i) {
    const bool first = best == 0;
    if (seconds[i] < (first ? kClearly : 1) * seconds[best]) best = i;
  }
  return best;
}

HostCopy::HostCopy(void* at, size_t bytes, megatron::cuda::CudaStream& stream)
    : at_(at), stream_(stream), bytes_(bytes) {
  const cudaStream_t handle = stream.handle();
  megatron::cuda::check(cudaMemcpyAsync(bytes_.data(), at, bytes, cudaMemcpyDeviceToHost, handle),
                        "cudaMemcpyAsync of a matrix that products are added to");
  megatron::cuda::check(cudaStreamSynchronize(handle), "the work queued on a stream");
}

void HostCopy::restore() {
  const cudaStream_t handle = stream_.handle();
  megatron::cuda::check(
      cudaMemcpyAsync(at_, bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice, handle),
      "cudaMemcpyAsync of a matrix that products are added to");
  megatron::cuda::check(cudaStreamSynchronize(handle), "the work queued on a stream");
}

}  // namespace megatron::kernels::cuda
