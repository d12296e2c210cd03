#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"

namespace megatron::kernels::cpu {

void tokens_of_rows(const TokensOfRowsArgs& args, Stream& stream) {
  constexpr int64_t kRows = 4096;
  const HostRowTokens tokens(args.tokens, 0);
  const int32_t* index = args.index.defined() ? args.index.data<int32_t>() : nullptr;
  auto* samples = args.sample_ids.data<int64_t>();
  auto* positions = args.positions.data<int32_t>();
  for_blocks(stream, args.sample_ids.size(0), kRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const bool empty = index != nullptr && index[r] < 0;
      const int64_t token = index == nullptr ? r : index[r] / args.share;
      samples[r] = empty ? 0 : tokens.sample(token);
      positions[r] = empty ? 0 : static_cast<int32_t>(tokens.position(token));
    }
  });
}

}  // namespace megatron::kernels::cpu
