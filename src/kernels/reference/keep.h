// The random words of noise and the dropout mask, element by element; contracts in kernels/noise.h
// and kernels/dropout.h.
#pragma once

#include "base/philox.h"
#include "kernels/dropout.h"

namespace megatron::kernels::reference {

// The words of four channels.
inline PhiloxCounter noise_words(uint64_t key, int64_t sample, int64_t position, int64_t group) {
  const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
  const auto number = static_cast<uint64_t>(sample);
  return philox({low(static_cast<uint64_t>(group)), low(static_cast<uint64_t>(position)),
                 low(number), low(number >> 32)},
                {low(key), low(key >> 32)});
}

class Keep {
 public:
  Keep(const DropoutArgs::Mask& mask, uint64_t stream)
      : threshold_(static_cast<double>(mask.p) * 0x1p32), key_(philox_key(mask.seed, stream)) {}

  bool operator()(int64_t sample, int64_t position, int64_t channel) const {
    const PhiloxCounter words = noise_words(key_, sample, position, channel / 4);
    return words[static_cast<size_t>(channel % 4)] >= threshold_;
  }

 private:
  double threshold_;
  uint64_t key_;
};

}  // namespace megatron::kernels::reference
