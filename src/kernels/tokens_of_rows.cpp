#include "kernels/tokens_of_rows.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const TokensOfRowsArgs& args) {
  const Rules rules("tokens_of_rows", args);
  rules.require(args.tokens.length > 0 && args.share > 0, "tokens with a length, and share > 0");
  rules.require(args.sample_ids.rank() == 1, "sample_ids i64 [R]");
  const int64_t rows = args.sample_ids.size(0);
  check_row_tokens(rules, args.tokens, args.index.defined() ? 0 : rows);
  rules.optional(args.index, {rows}, DType::i32, "index i32 [R]");
  rules.dense(args.sample_ids, {rows}, DType::i64, "sample_ids i64 [R]");
  rules.dense(args.positions, {rows}, DType::i32, "positions i32 [R]");
}

}  // namespace megatron::kernels
