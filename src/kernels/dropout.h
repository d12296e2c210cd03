// Dropout with a counter-based mask (Philox). The mask depends on the element's identity, not on
// where or in which order it is computed.
#pragma once

#include <cstdint>

#include "kernels/access.h"
#include "kernels/row_tokens.h"

namespace megatron::kernels {

// out = x * keep / (1 - p). x, out [rows, C] contiguous, of the tokens that mask.rows names. out
// may be x; the gradient is the same call on dout. keep of element (sample, position, channel) in
// stream s: word channel % 4 of philox(counter {channel / 4, position, low 32 bits of sample, high
// 32 bits}, key {low, high 32 bits of philox_key(seed, s)}) >= p * 2^32. For attention: channel is
// the key's position, position the query's, and s of head n is mix_stream(stream, n).
struct DropoutArgs {
  struct Mask {
    float p = 0;  // 0: no dropout; below 1
    uint64_t seed = 0;
    uint64_t stream = 0;     // hash of the layer's name and the place of the dropout
    RowTokens rows;          // attention reads its sample_ids only
    int64_t first_head = 0;  // index in the layer of attention's head 0
    // Channel of column 0, a multiple of 4; not read by attention.
    int64_t first_channel = 0;
  };
  Mask mask;
  Tensor x, out;
};

constexpr uint64_t philox_key(uint64_t seed, uint64_t stream) {
  return seed * 0x9E3779B97F4A7C15ull ^ stream;
}

constexpr uint64_t mix_stream(uint64_t stream, uint64_t index) {
  return (stream ^ (index + 1)) * 0xff51afd7ed558ccdull;
}

void check(const DropoutArgs& args);

template <class F>
void visit(DropoutArgs& a, F&& f) {
  f("sample_ids", Access::read, a.mask.rows.sample_ids);
  f("positions", Access::read, a.mask.rows.positions);
  f("x", Access::read, a.x);
  f("out", Access::write, a.out);
}

}  // namespace megatron::kernels
