#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

inline constexpr int64_t kEmbeddingColumns = 1024;
// Rows to prefetch ahead: rows of tokens and tables are scattered, so the hardware prefetcher
// cannot predict them.
inline constexpr int64_t kRowsAhead = 2;

// out[0, n) = sum of n elements of the rows `tokens` of dout, in order, + (accumulate ? out : 0).
// Prefetches as much from later_dout and later_out.
template <class T>
void add_token_rows(const T* dout, int64_t width, const int32_t* tokens, int64_t count,
                    bool accumulate, float* out, int64_t n, const T* later_dout,
                    const float* later_out) {
  float sums[kEmbeddingColumns];
  const T* first = dout + tokens[0] * width;
  const auto finish = [&](V sum, int64_t i, auto part) {
    store(accumulate ? hn::Add(sum, load(out + i, part)) : sum, out + i, part);
  };
  for_vectors(0, n, [&](int64_t i, auto part) {
    __builtin_prefetch(later_dout + i);
    __builtin_prefetch(later_out + i);
    const V v = load(first + i, part);
    if (count == 1) {
      finish(v, i, part);
    } else {
      store(v, sums + i, part);
    }
  });
  for (int64_t k = 1; k < count; ++k) {
    const T* row = dout + tokens[k] * width;
    for_vectors(0, n, [&](int64_t i, auto part) {
      const V sum = hn::Add(load(sums + i, part), load(row + i, part));
      if (k + 1 == count) {
        finish(sum, i, part);
      } else {
        store(sum, sums + i, part);
      }
    });
  }
}

// tokens are sorted by row; those of rows[k] are tokens[starts[k]] to tokens[starts[k + 1] - 1].
void add_embedding_rows(const EmbeddingBackwardArgs& args, const int32_t* tokens,
                        const int32_t* rows, const int32_t* starts, int64_t hit, Stream& stream) {
  const int64_t width = args.dout.size(1);
  const int64_t chunks = ceil_div(width, kEmbeddingColumns), height = rows_per_block(width);
  for_storage_type("embedding_backward", args.dout.dtype(), [&](auto type) {
    using T = decltype(type);
    stream.pool().parallel_shares(ceil_div(hit, height) * chunks, [&](int64_t block, int) {
      const int64_t begin = block % chunks * kEmbeddingColumns, first = block / chunks * height;
      const int64_t last = std::min(hit, first + height);
      const int64_t n = std::min(width - begin, kEmbeddingColumns);
      const T* dout = args.dout.data<T>() + begin;
      float* dtable = args.dtable.out.data<float>() + begin;
      for (int64_t k = first; k < last; ++k) {
        const int64_t later = std::min(k + kRowsAhead, last - 1);
        add_token_rows(dout, width, tokens + starts[k], starts[k + 1] - starts[k],
                       args.dtable.beta != 0, dtable + rows[k] * width, n,
                       dout + tokens[starts[later]] * width, dtable + rows[later] * width);
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(add_embedding_rows);

namespace {

constexpr int64_t kBytesAhead = 8192;

// The table row of a token's id; -1 if it is not in this part of a larger table.
template <class Args>
int64_t row_of(const char* kernel, const Args& args, int64_t token, int64_t rows) {
  const int64_t id = args.ids.template data<int32_t>()[token], row = id - args.first;
  if (row >= 0 && row < rows) return row;
  MG_CHECK(args.part, "{}: id {} of token {} is outside the table of {} rows", kernel, id, token,
           rows);
  return -1;
}

}  // namespace

void embedding(const EmbeddingArgs& args, Stream& stream) {
  const int64_t rows = args.table.size(0), bytes = args.table.size(1) * size_of(args.table.dtype());
  const int32_t* ids = args.ids.data<int32_t>();
  const auto* table = static_cast<const std::byte*>(args.table.raw());
  auto* out = static_cast<std::byte*>(args.out.raw());
  const bool streamed = is_streamed(args.out, args.table.size(1), {});
  const int64_t tokens = args.ids.elements();
  const int64_t tokens_ahead = ceil_div(kBytesAhead, std::max<int64_t>(1, bytes));
  for_blocks(stream, tokens, rows_per_block(args.table.size(1)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = row_of("embedding", args, t, rows);
      const int64_t later = ids[std::min(t + tokens_ahead, tokens - 1)] - args.first;
      const bool asks = later >= 0 && later < rows;
      if (row >= 0 && streamed) {
        copy_streamed(table + row * bytes, out + t * bytes, bytes,
                      table + (asks ? later : row) * bytes);
        continue;
      }
      if (asks) prefetch(table + later * bytes, bytes);
      if (row < 0 && args.keeps) continue;
      if (row < 0) {
        std::memset(out + t * bytes, 0, static_cast<size_t>(bytes));
      } else {
        std::memcpy(out + t * bytes, table + row * bytes, static_cast<size_t>(bytes));
      }
    }
  });
}

Tensor embedding_backward_scratch(const EmbeddingBackwardArgs& args, Stream& stream) {
  return Tensor::empty(stream.scratch(), {6 * args.ids.elements() + 1}, DType::i32,
                       "tokens by row");
}

namespace {

struct RowTokens {
  int32_t* rows;
  int32_t* tokens;
};

// Sorts n tokens by row with a stable radix sort, 11 bits at a time from the lowest. Returns the
// sorted list, `from` or `other`.
RowTokens sorted(RowTokens from, RowTokens other, int64_t n, int64_t table_rows) {
  constexpr int kBits = 11;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  for (int shift = 0; (table_rows - 1) >> shift > 0; shift += kBits) {
    const auto part = [&](int64_t i) {
      return static_cast<uint32_t>(from.rows[i]) >> shift & kMask;
    };
    std::array<int32_t, kMask + 2> next{};
    for (int64_t i = 0; i < n; ++i) ++next[part(i) + 1];
    for (size_t k = 1; k < next.size(); ++k) next[k] += next[k - 1];
    for (int64_t i = 0; i < n; ++i) {
      const int32_t to = next[part(i)]++;
      other.rows[to] = from.rows[i];
      other.tokens[to] = from.tokens[i];
    }
    std::swap(from, other);
  }
  return from;
}

// Clears all rows except the `hit` ascending ones in `rows`.
void clear_other_rows(const EmbeddingBackwardArgs& args, const int32_t* rows, int64_t hit,
                      Stream& stream) {
  const int64_t width = args.dtable.out.size(1);
  float* dtable = args.dtable.out.data<float>();
  for_blocks(stream, args.dtable.out.size(0), rows_per_block(width),
             [&](int64_t begin, int64_t end) {
               const int32_t* next = std::lower_bound(rows, rows + hit, begin);
               while (begin < end) {
                 const int64_t stop = next == rows + hit ? end : std::min<int64_t>(end, *next++);
                 std::fill_n(dtable + begin * width, (stop - begin) * width, 0.0f);
                 begin = stop + 1;
               }
             });
}

}  // namespace

// Tokens are sorted by row, so that one thread writes each row of the table, from its tokens in
// ascending order.
void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) {
  require_storage_type("embedding_backward", args.dout.dtype());
  const int64_t count = args.ids.elements(), table_rows = args.dtable.out.size(0);
  const Tensor memory = embedding_backward_scratch(args, stream);
  const auto part = [&](int64_t k) { return memory.data<int32_t>() + k * count; };
  RowTokens all{part(0), part(1)};
  int64_t taken = 0;
  for (int64_t t = 0; t < count; ++t) {
    const int64_t row = row_of("embedding_backward", args, t, table_rows);
    if (row < 0) continue;
    all.rows[taken] = static_cast<int32_t>(row);
    all.tokens[taken++] = static_cast<int32_t>(t);
  }
  all = sorted(all, {part(2), part(3)}, taken, table_rows);
  int32_t* rows = part(4);
  int32_t* starts = part(5);
  int64_t hit = 0;
  for (int64_t i = 0; i < taken; ++i) {
    if (i > 0 && all.rows[i] == all.rows[i - 1]) continue;
    rows[hit] = all.rows[i];
    starts[hit++] = static_cast<int32_t>(i);
  }
  starts[hit] = static_cast<int32_t>(taken);
  if (args.dtable.beta == 0) clear_other_rows(args, rows, hit, stream);
  HWY_DYNAMIC_DISPATCH(add_embedding_rows)(args, all.tokens, rows, starts, hit, stream);
}

}  // namespace megatron::kernels::cpu
#endif
