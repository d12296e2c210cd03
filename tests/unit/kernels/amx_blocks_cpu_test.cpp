// Blocks of products in AMX tiles, and how their operands are packed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "amx_emulator.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/products/amx_pack.h"
#include "unit/kernels/cpu_maker.h"

namespace megatron::kernels::cpu {
namespace {

// A matrix of distinct bf16 whose rows are `stride` apart, in memory that ends with its last
// element.
struct Numbers {
  Numbers(int64_t rows, int64_t columns, int64_t gap) : stride(columns + gap) {
    values.resize(static_cast<size_t>((rows - 1) * stride + columns));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i * 40503 + 1);
  }
  MatrixRows rows() const {
    return {reinterpret_cast<const std::byte*>(values.data()), stride, DType::bf16};
  }
  uint16_t at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * stride + c)]; }

  int64_t stride;
  std::vector<uint16_t> values;
};

uint16_t half(const std::vector<uint32_t>& words, int64_t word, int64_t element) {
  const uint32_t both = words[static_cast<size_t>(word)];
  return static_cast<uint16_t>(element % 2 == 0 ? both : both >> 16);
}

#if defined(__x86_64__)

bool can_pack() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi");
}

TEST(AmxPack, StripsHoldRowsAndColumnsInTiles) {
  if (!can_pack()) GTEST_SKIP() << "packing needs AVX-512 with VBMI";
  for (const int64_t rows : {1, 7, 16, 19, 32}) {
    for (const int64_t elements : {1, 2, 31, 32, 33, 96, 130}) {
      for (const bool columns : {false, true}) {
        const Numbers from = columns ? Numbers(elements, rows, 5) : Numbers(rows, elements, 5);
        std::vector<uint32_t> out(static_cast<size_t>((elements + 31) / 32 * kAmxStepWords), 7u);
        columns ? columns_to_tiles(from.rows(), elements, rows, out.data())
                : rows_to_tiles(from.rows(), rows, elements, out.data());
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t e = 0; e < elements + elements % 2; ++e) {
            const int64_t word = e / 32 * kAmxStepWords + r * 16 + e / 2 % 16;
            const uint16_t want = e == elements ? 0 : columns ? from.at(e, r) : from.at(r, e);
            ASSERT_EQ(half(out, word, e), want)
                << rows << " rows, " << elements << " elements, columns " << columns << ": " << r
                << ", " << e;
          }
        }
      }
    }
  }
}

TEST(AmxPack, PanelsAreThoseOfPairs) {
  if (!can_pack()) GTEST_SKIP() << "packing needs AVX-512 with VBMI";
  for (const int64_t rows : {1, 2, 31, 40, 65}) {
    for (const int64_t columns : {1, 16, 31, 32, 33, 80}) {
      const Numbers from(rows, columns, 3);
      const int64_t panel = (rows + 1) / 2 * kPanel + 16;
      std::vector<uint32_t> got(static_cast<size_t>((columns + 31) / 32 * panel)), want = got;
      pairs_to_panels(from.rows(), rows, columns, panel, got.data());
      rows_to_panels(WordKind::bf16_pair, from.rows(), rows, rows + rows % 2, columns, panel,
                     want.data());
      EXPECT_EQ(got, want) << rows << " x " << columns;
    }
  }
  for (const int64_t rows : {1, 31, 32}) {
    for (const int64_t elements : {1, 30, 32, 33, 64, 97}) {
      const Numbers from(rows, elements, 3);
      std::vector<uint32_t> got(static_cast<size_t>((elements + 1) / 2 * kPanel)), want = got;
      pairs_to_panel(from.rows(), rows, elements, nullptr, got.data());
      transpose_to_panel(WordKind::bf16_pair, from.rows(), rows, elements, nullptr, want.data());
      EXPECT_EQ(got, want) << rows << " x " << elements;
    }
  }
}

#endif

// Every element is the chain of sums that few rows give, whatever block it lies in and however its
// operands are laid out.
TEST(AmxBlocks, HaveTheBitsOfFewRowsInEveryForm) {
  const auto& ways = bf16_ways();
  if (std::find(ways.begin(), ways.end(), Bf16Products::amx) == ways.end())
    GTEST_SKIP() << "neither AMX nor AVX-512 to emulate it with";
  const UseBf16Products use(Bf16Products::amx);
  struct Sizes {
    int64_t m, n, k;
  };
  std::vector<Sizes> sizes = {{65, 33, 31}, {97, 400, 96}, {70, 40, 801}};
  if (!slow(Bf16Products::amx))
    sizes.insert(sizes.end(), {{1100, 70, 320}, {130, 801, 1601}, {200, 96, 4096}});
  for (const auto& [m, n, k] : sizes) {
    Maker maker;
    const Tensor a = maker.normal({m, k}, DType::bf16), b = maker.normal({n, k}, DType::bf16);
    const auto turned = [&](const Tensor& t) {
      Tensor copy = maker.normal({t.size(1), t.size(0)}, DType::bf16);
      const auto from = t.span<bf16>();
      const auto to = copy.span<bf16>();
      for (int64_t i = 0; i < t.size(0); ++i) {
        for (int64_t j = 0; j < t.size(1); ++j) {
          to[static_cast<size_t>(j * t.size(0) + i)] = from[static_cast<size_t>(i * t.size(1) + j)];
        }
      }
      return copy;
    };
    const Tensor across_a = turned(a), across_b = turned(b);
    const Tensor want = maker.normal({m, n}, DType::f32);
    for (int64_t i = 0; i < m; i += 8) {
      const int64_t rows = std::min<int64_t>(8, m - i);
      gemm({.a = a.slice(0, i, rows), .b = b, .out = want.slice(0, i, rows), .transpose_b = true},
           maker.stream());
    }
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        const Tensor got = maker.normal({m, n}, DType::f32);
        gemm({.a = transpose_a ? across_a : a,
              .b = transpose_b ? b : across_b,
              .out = got,
              .transpose_a = transpose_a,
              .transpose_b = transpose_b},
             maker.stream());
        EXPECT_EQ(std::memcmp(got.raw(), want.raw(), static_cast<size_t>(m * n) * 4), 0)
            << m << " x " << n << " over " << k << ", transposed " << transpose_a << transpose_b;
      }
    }
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu
