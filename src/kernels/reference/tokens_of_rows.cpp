#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {

void tokens_of_rows(const TokensOfRowsArgs& args, Stream&) {
  const RowTokens& tokens = args.tokens;
  const std::vector<int64_t> samples = load_integers(tokens.sample_ids),
                             positions = load_integers(tokens.positions),
                             index = load_integers(args.index);
  std::vector<int64_t> sample_of, position_of;
  for (int64_t r = 0; r < args.sample_ids.size(0); ++r) {
    const int64_t slot = args.index.defined() ? index[static_cast<size_t>(r)] : r * args.share;
    const int64_t token = tokens.first + slot / args.share;
    const int64_t in_order = token % tokens.length;
    sample_of.push_back(slot < 0 ? 0 : samples[static_cast<size_t>(token / tokens.length)]);
    position_of.push_back(slot < 0                     ? 0
                          : tokens.positions.defined() ? positions[static_cast<size_t>(token)]
                                                       : in_order);
  }
  store_integers(args.sample_ids, sample_of);
  store_integers(args.positions, position_of);
}

}  // namespace megatron::kernels::reference
