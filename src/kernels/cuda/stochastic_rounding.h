// Random numbers by which elements of a matrix are rounded (QuantizeArgs::stochastic).
#pragma once

#include "kernels/cuda/philox.h"
#include "kernels/cuda/row_tokens.h"
#include "kernels/quantize.h"

namespace megatron::kernels::cuda {

struct RoundingChances {
  DeviceRowTokens tokens;
  uint64_t key = 0;
  ChannelRuns channels;

  __device__ float at(int64_t row, int64_t column) const {
    const DeviceRowTokens::Token token = tokens.at(static_cast<uint32_t>(row));
    const int64_t channel = channels.channel(column);
    const PhiloxWords words =
        dropout_words(key, token.sample, token.position, static_cast<uint32_t>(channel / 4));
    return static_cast<float>(words.at[channel % 4] >> 8) * 0x1p-24f;
  }
};

// args: QuantizeArgs or EncodeOperandArgs.
template <class Args>
RoundingChances rounding_chances(const char* kernel, const Args& args) {
  RoundingChances chances{.tokens = {}, .key = args.noise.key(), .channels = args.channels};
  if (args.stochastic)
    chances.tokens = device_row_tokens(kernel, args.noise.tokens, args.x.size(0));
  return chances;
}

}  // namespace megatron::kernels::cuda
