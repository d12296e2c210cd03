#include "kernels/cpu/products/amx_products.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/products/amx_strip.h"
#include "kernels/cpu/products/transpose16.h"

namespace megatron::kernels::cpu {

#if defined(__x86_64__)

namespace {

using amx::kRows;
using amx::kRowWords;
using amx::Tiles;
using avx512::Vector;

// out[r * kAmxTurnedWords + l] = word l of row r; 0 up to a multiple of 16 words.
[[gnu::target("avx512f")]] void turn_rows(const uint32_t* a, int64_t a_step, int64_t rows,
                                          int64_t words, uint32_t* out) {
  for (int64_t r = 0; r < rows; r += kRows, a += kRows, out += kRows * kAmxTurnedWords) {
    const auto held = static_cast<__mmask16>((1u << std::min(rows - r, kRows)) - 1);
    for (int64_t l = 0; l < words; l += kRowWords) {
      Vector t[16];
      for (int64_t i = 0; i < 16; ++i) {
        const __mmask16 lanes = l + i < words ? held : __mmask16{0};
        t[i] = reinterpret_cast<Vector>(_mm512_maskz_loadu_epi32(lanes, a + (l + i) * a_step));
      }
      avx512::transpose16(t);
      for (int64_t i = 0; i < 16; ++i)
        _mm512_store_si512(out + i * kAmxTurnedWords + l, reinterpret_cast<__m512i>(t[i]));
    }
  }
}

}  // namespace

void tile_product_amx(const TileProduct& p) {
  Tiles tiles;
  for (int64_t i = 0; i < p.m; i += kAmxStrip) {
    const int64_t rows = std::min(kAmxStrip, p.m - i);
    amx::Strip strip{.a = p.a + i * p.a_row,
                     .a_row = p.a_row,
                     .a_below = kRows * p.a_row,
                     .a_step = kRowWords,
                     .steps = 0,
                     .b = p.b,
                     .panel = p.panel,
                     .c = p.c + i * p.ldc,
                     .ldc = p.ldc,
                     .n = p.n,
                     .accumulate = p.accumulate};
    alignas(64) uint32_t turned[kAmxStrip * kAmxTurnedWords];
    if (p.a_step != 1) {
      MG_ASSERT(p.a_row == 1 && p.k <= kAmxTurnedWords);
      turn_rows(strip.a, p.a_step, rows, p.k, turned);
      strip.a = turned;
      strip.a_row = kAmxTurnedWords;
      strip.a_below = kRows * kAmxTurnedWords;
    }
    amx::multiply_words<false>(strip, rows, p.k, tiles, [](int) {});
  }
}

KeepTiles::KeepTiles() { Tiles::hold(); }
KeepTiles::~KeepTiles() { Tiles::let_go(); }

#else

KeepTiles::KeepTiles() {}
KeepTiles::~KeepTiles() {}
void tile_product_amx(const TileProduct&) { MG_ASSERT(false); }

#endif

}  // namespace megatron::kernels::cpu
