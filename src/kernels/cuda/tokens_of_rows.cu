#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_tokens.h"

namespace megatron::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    find_tokens(int64_t rows, DeviceRowTokens tokens, const int32_t* index, Divisor share,
                int64_t* samples, int32_t* positions) {
  const int64_t r = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (r >= rows) return;
  DeviceRowTokens::Token token{0, 0};
  if (index == nullptr) {
    token = tokens.at(static_cast<uint32_t>(r));
  } else if (index[r] >= 0) {
    token = tokens.at(share.quotient(static_cast<uint32_t>(index[r])));
  }
  samples[r] = token.sample;
  positions[r] = static_cast<int32_t>(token.position);
}

}  // namespace

void tokens_of_rows(const TokensOfRowsArgs& args, Stream& stream) {
  const int64_t rows = args.sample_ids.size(0);
  if (rows == 0) return;
  launch("tokens_of_rows", find_tokens, grid_for(rows), stream, rows,
         device_row_tokens("tokens_of_rows", args.tokens, rows), address_of<int32_t>(args.index),
         Divisor(static_cast<uint32_t>(args.share)), address_of<int64_t>(args.sample_ids),
         address_of<int32_t>(args.positions));
}

}  // namespace megatron::kernels::cuda
