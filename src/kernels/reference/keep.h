// The dropout mask, element by element; kernels/dropout.h has the contract.
#pragma once

#include "base/philox.h"
#include "kernels/dropout.h"

namespace megatron::kernels::reference {

class Keep {
 public:
  Keep(const DropoutArgs::Mask& mask, uint64_t stream)
      : threshold_(static_cast<double>(mask.p) * 0x1p32), key_(philox_key(mask.seed, stream)) {}

  bool operator()(int64_t sample, int64_t position, int64_t channel) const {
    const PhiloxCounter words = philox({static_cast<uint32_t>(channel / 4),
                                        static_cast<uint32_t>(position), low(sample), high(sample)},
                                       {low(key_), high(key_)});
    return words[static_cast<size_t>(channel % 4)] >= threshold_;
  }

 private:
  static uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
  static uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

  double threshold_;
  uint64_t key_;
};

}  // namespace megatron::kernels::reference
