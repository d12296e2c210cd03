// Products with AVX2's tiles, and their blocking for the processor's caches.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/products/bf16_products.h"
#include "kernels/cpu/products/block_size.h"
#include "kernels/instruction_set.h"
#include "unit/kernels/cpu_maker.h"

namespace megatron::kernels::cpu {
namespace {

TEST(BlockSize, ASliceOfTheSecondFactorLeavesRoomInTheCache) {
  constexpr int64_t kKiB = 1024;
  for (const auto& [cache, columns] : {std::pair{128 * kKiB, 192},
                                       {256 * kKiB, 192},
                                       {512 * kKiB, 384},
                                       {kKiB * kKiB, 768},
                                       {4096 * kKiB, 768}})
    EXPECT_EQ(largest_block(WordKind::f32, cache).n, columns) << cache;
  EXPECT_EQ(largest_block(WordKind::bf16_amx, 512 * kKiB).n, 384);
  EXPECT_GT(second_level_cache(), 0);
}

TEST(BlockSize, RowsAreWholeStrips) {
  for (const WordKind kind : {WordKind::f32, WordKind::bf16_pair, WordKind::bf16_amx}) {
    const BlockSize size = largest_block(kind, 1 << 20);
    EXPECT_EQ(size.m % tile_strip(kind), 0);
    EXPECT_LE(size.m, kMaxRows);
    EXPECT_LE(size.n, kMaxColumns);
  }
}

TEST(InstructionSet, OfAvx2HasNothingNewer) {
  limit_instruction_set(InstructionSet::newest);
  if ((hwy::SupportedTargets() & HWY_AVX2) == 0) {
    EXPECT_ANY_THROW(limit_instruction_set(InstructionSet::avx2));
    return;
  }
  limit_instruction_set(InstructionSet::avx2);
  EXPECT_EQ(bf16_products(), Bf16Products::widened);
  EXPECT_EQ(tile_strip(WordKind::f32), 12);
  EXPECT_EQ(tile_set(), TileSet::avx2);
  limit_instruction_set(InstructionSet::newest);
  EXPECT_EQ(tile_set() == TileSet::avx512, (hwy::SupportedTargets() & HWY_AVX3) != 0);
}

// Both compute each element as one chain of fused products, in tiles of different sizes.
TEST(InstructionSet, ProductsOfF32HaveTheSameBitsOnAvx2AndAvx512) {
  if ((hwy::SupportedTargets() & HWY_AVX3) == 0) GTEST_SKIP() << "there is no AVX-512 here";
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const int64_t m : {1, 7, 8, 11, 13, 35, 60, 61, 131, 2055}) {
        const int64_t n = 97, k = m > 1000 ? 130 : 301;
        Maker maker;
        const Tensor a = maker.normal(transpose_a ? Shape{k, m} : Shape{m, k}, DType::f32);
        const Tensor b = maker.normal(transpose_b ? Shape{n, k} : Shape{k, n}, DType::f32);
        std::vector<Tensor> results;
        for (const InstructionSet set : {InstructionSet::newest, InstructionSet::avx2}) {
          limit_instruction_set(set);
          const Tensor out = results.emplace_back(maker.empty({m, n}, DType::f32));
          gemm({.a = a,
                .b = b,
                .out = out,
                .transpose_a = transpose_a,
                .transpose_b = transpose_b,
                .bias = {}},
               maker.stream());
        }
        limit_instruction_set(InstructionSet::newest);
        EXPECT_TRUE(std::ranges::equal(results[0].span<float>(), results[1].span<float>()))
            << m << " rows" << (transpose_a ? " of columns" : "")
            << (transpose_b ? ", b transposed" : "");
      }
    }
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu
