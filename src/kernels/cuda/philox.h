// Random words of the dropout mask on the device; kernels/dropout.h has the contract. Philox4x32-10
// (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/dropout.h"

namespace megatron::kernels::cuda {

struct PhiloxWords {
  uint32_t at[4];
};

__device__ inline PhiloxWords philox(PhiloxWords counter, uint64_t key) {
  uint32_t(&c)[4] = counter.at;
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
    c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
    c[1] = static_cast<uint32_t>(p1);
    c[3] = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// The key of a stream. Head n of attention stream s uses the stream mix_stream(s, n).
__host__ __device__ inline uint64_t dropout_key(uint64_t seed, uint64_t stream) {
  return seed * 0x9E3779B97F4A7C15ull ^ stream;
}
// An element is kept if its word is at least this.
inline uint32_t dropout_threshold(float p) {
  return static_cast<uint32_t>(std::ceil(static_cast<double>(p) * 4294967296.0));
}
// Words of channels 4 group to 4 group + 3.
__device__ inline PhiloxWords dropout_words(uint64_t key, int64_t sample, uint32_t position,
                                            uint32_t group) {
  const auto number = static_cast<uint64_t>(sample);
  return philox(
      {{group, position, static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32)}}, key);
}

}  // namespace megatron::kernels::cuda
