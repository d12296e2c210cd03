#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct TokensOfRows {
  int64_t samples = 1, length = 1, first = 0, rows = 1, share = 0;  // share 0: without an index
  bool positions = false;
  bool real = false;
  DType type = DType::i32;

  std::string str() const {
    return fmt::format("b={} t={} rows={}+{} share={}{}", samples, length, first, rows, share,
                       positions ? " positions" : "");
  }
};

TokensOfRowsArgs tokens_of_rows_args(Inputs& inputs, const TokensOfRows& t) {
  TokensOfRowsArgs args;
  args.tokens = {
      .sample_ids = inputs.integers("samples", {t.samples}, DType::i64, 0, int64_t{1} << 40),
      .positions = {},
      .first = t.first,
      .length = t.length};
  if (t.positions)
    args.tokens.positions =
        inputs.integers("places", {t.samples * t.length}, DType::i32, 0, 4 * t.length);
  if (t.share > 0) {
    const int64_t tokens = t.samples * t.length - t.first;
    args.share = t.share;
    args.index = inputs.integers("index", {t.rows}, DType::i32, -1, tokens * t.share);
  }
  args.sample_ids = inputs.output("sample_ids", {t.rows}, DType::i64);
  args.positions = inputs.output("positions", {t.rows}, DType::i32);
  return args;
}

}  // namespace

void add_tokens_of_rows_cases(std::vector<Case>& cases) {
  for (const TokensOfRows& t :
       {TokensOfRows{}, TokensOfRows{.rows = 0},
        TokensOfRows{.samples = 3, .length = 5, .first = 4, .rows = 11},
        TokensOfRows{.samples = 3, .length = 5, .rows = 15, .positions = true},
        TokensOfRows{.samples = 30, .length = 1, .rows = 9000, .share = 3, .positions = true},
        TokensOfRows{.samples = 2, .length = 7, .first = 1, .rows = 40, .share = 1},
        TokensOfRows{.samples = 4096, .length = 1, .rows = 8192, .share = 2, .real = true}}) {
    Case made = case_of(&Table::tokens_of_rows, t, 1, tokens_of_rows_args);
    made.exact = true;
    cases.push_back(std::move(made));
  }
}

}  // namespace megatron::kernels
