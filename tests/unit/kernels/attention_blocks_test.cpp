// The blocks of keys that the cpu's attention computes for its rows.
#include <gtest/gtest.h>

#include "kernels/cpu/attention/blocks.h"

namespace megatron::kernels::cpu {
namespace {

constexpr int64_t kTokens = 2048;

// A call of one head over kTokens queries and keys.
class AttentionBlocksTest : public ::testing::Test {
 protected:
  AttentionBlocksTest() {
    for (Tensor* t : {&args.q, &args.k, &args.v}) *t = make({1, kTokens, 1, 8}, DType::f32);
    args.causal = false;
  }
  Tensor make(Shape shape, DType type) {
    return Tensor::empty(runtime.arena(MemoryClass::activations), shape, type, "test");
  }
  // Documents of equal lengths.
  void confine(int64_t length) {
    args.window_start = make({1, kTokens}, DType::i32);
    args.window_end = make({1, kTokens}, DType::i32);
    for (int64_t i = 0; i < kTokens; ++i) {
      const int64_t begin = i / length * length;
      args.window_start.data<int32_t>()[i] = static_cast<int32_t>(begin);
      args.window_end.data<int32_t>()[i] = static_cast<int32_t>(begin + length - 1);
    }
  }
  // Rows times keys, in whole panels, over all tiles that the call computes.
  int64_t computed_pairs() {
    const AttentionSizes sizes(args);
    Arena& arena = runtime.arena(MemoryClass::scratch);
    const KeyPlaces places(sizes, arena.allocate(KeyPlaces::bytes(sizes), "test"));
    int64_t pairs = 0;
    for (int64_t b = 0; b < sizes.row_blocks(); ++b) {
      const RowBlock block(sizes, 0, 0, b);
      const RowBlock::KeyBlocks blocks = block.key_blocks(sizes);
      for (int64_t k = blocks.begin; k < blocks.end; ++k)
        pairs += block.rows * block.tile(places, k).keys;
    }
    return pairs;
  }

  Runtime runtime{{DeviceKind::cpu, 0}, 1};
  AttentionArgs args;
};

TEST_F(AttentionBlocksTest, AreAllWithoutBounds) { EXPECT_EQ(computed_pairs(), kTokens * kTokens); }

TEST_F(AttentionBlocksTest, AreThoseOfTheDocument) {
  confine(128);
  EXPECT_EQ(computed_pairs(), kTokens * 128);
}

// A block of 64 rows sees a panel of 32 keys more on each side, except at the ends.
TEST_F(AttentionBlocksTest, AreThoseOfATwoSidedWindow) {
  args.window = 33;
  EXPECT_EQ(computed_pairs(), kTokens * 128 - 2 * 64 * 32);
}

TEST_F(AttentionBlocksTest, AreThoseInDocumentAndWindow) {
  confine(64);
  args.window = 33;
  EXPECT_EQ(computed_pairs(), kTokens * 64);
}

// Ends of -1 hide all keys.
TEST_F(AttentionBlocksTest, AreNoneForRowsThatSeeNothing) {
  confine(kTokens);
  std::fill_n(args.window_end.data<int32_t>(), kTokens, -1);
  EXPECT_EQ(computed_pairs(), 0);
}

}  // namespace
}  // namespace megatron::kernels::cpu
