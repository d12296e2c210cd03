// Looks up the tokens of a tensor's rows (kernels/row_tokens.h) in a kernel.
#pragma once

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/divisor.h"
#include "kernels/row_tokens.h"

namespace megatron::kernels::cuda {

struct DeviceRowTokens {
  struct Token {
    int64_t sample;
    uint32_t position;
  };
  const int64_t* samples = nullptr;
  const int32_t* positions = nullptr;  // null: 0..length-1
  uint32_t first = 0;
  Divisor length = Divisor(1);

  __device__ Token at(uint32_t row) const {
    const uint32_t token = first + row, sequence = length.quotient(token);
    return {samples[sequence], positions == nullptr ? token - sequence * length.value()
                                                    : static_cast<uint32_t>(positions[token])};
  }
};

// kernel: its name, for the error if there are too many rows.
inline DeviceRowTokens device_row_tokens(const char* kernel, const RowTokens& tokens,
                                         int64_t rows) {
  const int64_t length = tokens.length_of(rows);
  if (!tokens.sample_ids.defined()) return {};
  count_items(kernel, std::max(tokens.sample_ids.elements() * length, rows));
  return {.samples = address_of<int64_t>(tokens.sample_ids),
          .positions = address_of<int32_t>(tokens.positions),
          .first = static_cast<uint32_t>(tokens.first),
          .length = Divisor(static_cast<uint32_t>(length))};
}

}  // namespace megatron::kernels::cuda
