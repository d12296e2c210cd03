// Maps the rows of a tensor to tokens of sequences. Random numbers are keyed by the token, so they
// do not depend on which rank computes a row (kernels/dropout.h, kernels/noise.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/tensor.h"

namespace megatron::kernels {

// A rank holds L tokens of each of B sequences; the tensor has consecutive rows of these B * L.
struct RowTokens {
  Tensor
      sample_ids;  // i64 [B]: index of each sequence in the whole run, so it differs between steps
  // i32 [B * L]: index of each token within its sequence; undefined: 0..L-1.
  Tensor positions;
  int64_t first = 0;   // index of row 0 among the B * L tokens; requires length
  int64_t length = 0;  // L; 0: the tensor has all B * L rows

  // Returns L for a tensor with `rows` rows.
  int64_t length_of(int64_t rows) const {
    if (length > 0) return length;
    const int64_t samples = sample_ids.defined() ? std::max<int64_t>(1, sample_ids.elements()) : 1;
    return std::max<int64_t>(1, rows / samples);
  }
};

// Looks up the tokens of rows on the host.
class HostRowTokens {
 public:
  HostRowTokens(const RowTokens& tokens, int64_t rows)
      : samples_(tokens.sample_ids.defined() ? tokens.sample_ids.data<int64_t>() : nullptr),
        positions_(tokens.positions.defined() ? tokens.positions.data<int32_t>() : nullptr),
        first_(tokens.first),
        length_(tokens.length_of(rows)) {}

  int64_t sample(int64_t row) const { return samples_[(first_ + row) / length_]; }
  uint32_t position(int64_t row) const {
    const int64_t token = first_ + row;
    return static_cast<uint32_t>(positions_ == nullptr ? token % length_ : positions_[token]);
  }

 private:
  const int64_t* samples_;
  const int32_t* positions_;
  int64_t first_, length_;
};

}  // namespace megatron::kernels
