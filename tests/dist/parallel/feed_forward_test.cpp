// A feed-forward block in chunks of tokens, divided among tensor-parallel ranks: each rank has the
// same bits as without chunks.
#include "parallel/feed_forward.h"

#include <gtest/gtest.h>

#include "dist/parallel/divided.h"
#include "ops/activation.h"
#include "parallel/linear.h"

namespace megatron::parallel {
namespace {

Var whole(Tape& tape, const Var& x, const FeedForward& f, const TensorParallel& tp) {
  const Var v = column_linear(tape, x, f.up, f.up_bias, tp);
  return row_linear(tape, ops::activation(tape, v, f.activation, f.gated, f.clamp, f.up_offset),
                    f.down, f.down_bias, tp);
}

// chunks 0: without feed_forward().
void block(Bench& b, bool gated, bool biased, int64_t chunks) {
  constexpr int64_t kRows = 12, kNarrow = 5, kWide = 72;
  const int64_t inner = kWide / b.tp.size(), outputs = gated ? 2 * inner : inner;
  Parameter up, up_bias, down, down_bias;
  FeedForward f{.up = b.weight(up, b.drawn("up", {outputs, kNarrow})),
                .down = b.weight(down, b.drawn("down", {kNarrow, inner})),
                .activation = gated ? kernels::Activation::silu : kernels::Activation::gelu_tanh,
                .gated = gated,
                .chunks = chunks};
  if (biased) {
    f.up_bias = b.weight(up_bias, b.drawn("up_bias", {outputs}));
    f.down_bias = b.weight(down_bias, b.drawn("down_bias", {kNarrow}));
  }
  Tape tape(b.runtime);
  const Var x = tape.leaf(b.tokens("x", {kRows, kNarrow}));
  const Var y = chunks == 0 ? whole(tape, x, f, b.tp) : feed_forward(tape, x, f, b.tp);
  tape.set_gradient(y, b.tokens("dy", {kRows, kNarrow}));
  b.backward(tape);
  b.give("y", y.value, How::rows);
  b.give("dx", tape.gradient(x), How::rows);
  b.give_gradient("up", up, How::rows);
  b.give_gradient("down", down, How::rows);
  if (!biased) return;
  b.give_gradient("up_bias", up_bias, How::rows);
  b.give_gradient("down_bias", down_bias, How::rows);
}

TEST(FeedForward, InChunksHasTheBitsOfTheWhole) {
  for (const Setting& s : settings({1, 2, 4})) {
    for (const bool gated : {false, true})
      for (const bool biased : {false, true})
        for (const int64_t chunks : {2, 5}) {
          const auto of = [&](int64_t n) {
            return results_of(s, [&](Bench& b) { block(b, gated, biased, n); });
          };
          const std::vector<Results> expected = of(0), got = of(chunks);
          for (size_t rank = 0; rank < expected.size(); ++rank)
            for (const auto& [name, result] : expected[rank])
              EXPECT_EQ(got[rank].at(name).values, result.values)
                  << s << ", rank " << rank << ", " << name << ", " << chunks << " chunks";
        }
  }
}

}  // namespace
}  // namespace megatron::parallel
