// Products of up to 32 rows with panels of 32 columns in AMX tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/products/amx.h"
#include "kernels/cpu/products/tiles.h"

namespace megatron::kernels::cpu::amx {

// Use of the eight tiles: sums of two tiles of rows by two of columns, and their operands.
inline constexpr int kSums00 = 0, kSums01 = 1, kSums10 = 2, kSums11 = 3;
inline constexpr int kRows0 = 4, kRows1 = 5, kColumns0 = 6, kColumns1 = 7;

struct TileConfiguration {
  int64_t holders = 0;  // objects of Tiles
  int64_t rows = 0, words = 0, columns = 0;
};

// The tile configuration of a thread, loaded again only if a shape changes, since that takes as
// long as some ten products of tiles. It lasts as long as the thread has objects of this class.
class Tiles {
 public:
  Tiles() { hold(); }
  Tiles(const Tiles&) = delete;
  ~Tiles() { let_go(); }
  static void hold() { ++now_.holders; }
  static void let_go() {
    if (--now_.holders > 0 || now_.rows == 0) return;
    release();
    now_ = {};
  }

  // Configures products of up to 32 `rows` rows of `words` words with two tiles of `columns`
  // columns, whose second operand has `words` rows.
  void shape(int64_t rows, int64_t words, int64_t columns = kRows) {
    if (rows == now_.rows && words == now_.words && columns == now_.columns) return;
    now_ = {.holders = now_.holders, .rows = rows, .words = words, .columns = columns};
    const int64_t first = std::min(rows, kRows), second = rows - first;
    Shapes shapes;
    shapes.set(kSums00, first, columns);
    shapes.set(kSums01, first, columns);
    shapes.set(kSums10, second, columns);
    shapes.set(kSums11, second, columns);
    shapes.set(kRows0, first, words);
    shapes.set(kRows1, second, words);
    shapes.set(kColumns0, words, columns);
    shapes.set(kColumns1, words, columns);
    configure(shapes);
  }

 private:
  static inline thread_local TileConfiguration now_;
};

// c [32,n] = a b + (accumulate ? c : 0) for up to 32 rows and whole panels of columns, over steps
// of 16 words.
//   a: word l of row i at a[l / 16 * a_step + i / 16 * a_below + i % 16 * a_row + l % 16].
//   b, c: as in TileProduct.
struct Strip {
  const uint32_t* a;
  int64_t a_row, a_below, a_step;
  int64_t steps;
  const uint32_t* b;
  int64_t panel;
  float* c;
  int64_t ldc, n;
  bool accumulate;

  // Moves on by this number of steps, whose sums are in c.
  void skip(int64_t count) {
    a += count * a_step;
    b += count * kRowWords * kPanel;
    accumulate = true;
  }
};

// The sums of one panel stay in tiles. They are stored while the next panel's first step is
// multiplied, and the next panel's are prefetched if they are added to.
template <bool kTwo, bool kOnce>
class StripProduct {
 public:
  explicit StripProduct(const Strip& strip)
      : s_(strip),
        a_stride_(strip.a_row * 4),
        c_stride_(strip.ldc * 4),
        below_(kRows * strip.ldc) {}

  // Calls meanwhile(0) to meanwhile(3) at every step, between the instructions for tiles, to
  // prefetch memory.
  template <class F>
  void run(F meanwhile) {
    const int64_t ahead = s_.accumulate && s_.steps >= kLong ? kRows * 2 / (s_.steps - 1) + 1 : 0;
    for (int64_t j = 0; j < s_.n; j += kPanel) {
      begin(j, s_.b + j / kPanel * s_.panel, meanwhile);
      for (int64_t step = 1; step < s_.steps; ++step) {
        prefetch_sums(j + kPanel, (step - 1) * ahead, ahead);
        multiply_step(meanwhile);
      }
    }
    float* const c = last_;
    store<kSums00>(c, c_stride_);
    store<kSums01>(c + kRows, c_stride_);
    if constexpr (kTwo) {
      store<kSums10>(c + below_, c_stride_);
      store<kSums11>(c + below_ + kRows, c_stride_);
    }
  }

 private:
  static constexpr int64_t kPanelRow = kPanel * 4, kLong = 8;

  template <int kTile>
  void load_columns(const uint32_t* b) {
    kOnce ? load_once<kTile>(b, kPanelRow) : load<kTile>(b, kPanelRow);
  }
  // Stores a tile of sums of the panel before and begins that of this one.
  template <int kTile>
  void exchange(float* c, int64_t offset) {
    if (last_ != nullptr) store<kTile>(last_ + offset, c_stride_);
    s_.accumulate ? load<kTile>(c + offset, c_stride_) : zero<kTile>();
  }

  template <class F>
  void begin(int64_t j, const uint32_t* b, F& meanwhile) {
    float* const c = s_.c + j;
    a_ = s_.a;
    b_ = b;
    load_columns<kColumns0>(b_);
    load<kRows0>(a_, a_stride_);
    exchange<kSums00>(c, 0);
    meanwhile(0);
    multiply<kSums00, kRows0, kColumns0>();
    load_columns<kColumns1>(b_ + kRows);
    exchange<kSums01>(c, kRows);
    meanwhile(1);
    multiply<kSums01, kRows0, kColumns1>();
    meanwhile(2);
    if constexpr (kTwo) {
      load<kRows1>(a_ + s_.a_below, a_stride_);
      exchange<kSums10>(c, below_);
      multiply<kSums10, kRows1, kColumns0>();
    }
    meanwhile(3);
    if constexpr (kTwo) {
      exchange<kSums11>(c, below_ + kRows);
      multiply<kSums11, kRows1, kColumns1>();
    }
    last_ = c;
    next_step();
  }

  template <class F>
  void multiply_step(F& meanwhile) {
    meanwhile(0);
    load_columns<kColumns0>(b_);
    load<kRows0>(a_, a_stride_);
    multiply<kSums00, kRows0, kColumns0>();
    meanwhile(1);
    load_columns<kColumns1>(b_ + kRows);
    multiply<kSums01, kRows0, kColumns1>();
    meanwhile(2);
    if constexpr (kTwo) {
      load<kRows1>(a_ + s_.a_below, a_stride_);
      multiply<kSums10, kRows1, kColumns0>();
    }
    meanwhile(3);
    if constexpr (kTwo) multiply<kSums11, kRows1, kColumns1>();
    next_step();
  }
  void next_step() {
    a_ += s_.a_step;
    b_ += kRowWords * kPanel;
  }

  [[gnu::always_inline]] void prefetch_sums(int64_t j, int64_t row, int64_t count) const {
    if (j >= s_.n) return;
    const float* c = s_.c + row * s_.ldc + j;
    for (const int64_t end = std::min(row + count, kTwo ? 2 * kRows : kRows); row < end; ++row) {
      __builtin_prefetch(c);
      __builtin_prefetch(c + kRows);
      c += s_.ldc;
    }
  }

  const Strip& s_;
  const int64_t a_stride_, c_stride_, below_;
  const uint32_t *a_ = nullptr, *b_ = nullptr;
  float* last_ = nullptr;
};

// Multiplies `words` words of a strip of `rows` rows: whole steps, then the remainder. kOnce: each
// panel is read once, and should not displace the strip in the L1 cache.
template <bool kOnce, class F>
void multiply_words(Strip strip, int64_t rows, int64_t words, Tiles& tiles, F meanwhile) {
  const auto run = [&](int64_t steps, int64_t step_words, auto f) {
    strip.steps = steps;
    tiles.shape(rows, step_words);
    rows > kRows ? StripProduct<true, kOnce>(strip).run(f)
                 : StripProduct<false, kOnce>(strip).run(f);
    strip.skip(steps);
  };
  const int64_t whole = words / kRowWords, left = words % kRowWords;
  if (whole > 0) run(whole, kRowWords, meanwhile);
  if (left > 0) run(1, left, [](int) {});
}

}  // namespace megatron::kernels::cpu::amx
