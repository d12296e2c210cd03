#include "kernels/cpu/embedding.h"

#include <cstring>

#include "base/error.h"
#include "kernels/check.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

inline constexpr int64_t kEmbeddingColumns = 1024;
// Rows of tokens and of tables lie apart: the processor does not foresee them.
inline constexpr int64_t kRowsAhead = 2;

// out[begin, end) = sum of the rows `tokens` of dout, in their order, + (accumulate ? out : 0).
template <class T>
void add_token_rows(const T* dout, int64_t width, const int32_t* tokens, int64_t count,
                    bool accumulate, float* out, int64_t begin, int64_t end) {
  float sums[kEmbeddingColumns];
  const int64_t n = end - begin;
  const T* first = dout + tokens[0] * width + begin;
  for_vectors(0, n, [&](int64_t i, auto part) { store(load(first + i, part), sums + i, part); });
  for (int64_t k = 1; k < count; ++k) {
    const T* row = dout + tokens[k] * width + begin;
    for_vectors(0, n, [&](int64_t i, auto part) {
      store(hn::Add(load(sums + i, part), load(row + i, part)), sums + i, part);
    });
  }
  for_vectors(0, n, [&](int64_t i, auto part) {
    const V sum = load(sums + i, part);
    store(accumulate ? hn::Add(sum, load(out + begin + i, part)) : sum, out + begin + i, part);
  });
}

// tokens sorted by row; tokens of rows[k] are [starts[k], starts[k + 1]).
void add_embedding_rows(const EmbeddingBackwardArgs& args, const int32_t* tokens,
                        const int32_t* rows, const int32_t* starts, int64_t hit, Stream& stream) {
  const int64_t width = args.dout.size(1);
  const int64_t chunks = ceil_div(width, kEmbeddingColumns), height = rows_per_block(width);
  float* dtable = args.dtable.out.data<float>();
  for_storage_type("embedding_backward", args.dout.dtype(), [&](auto type) {
    using T = decltype(type);
    stream.pool().parallel_for(ceil_div(hit, height) * chunks, [&](int64_t block, int) {
      const int64_t begin = block % chunks * kEmbeddingColumns, first = block / chunks * height;
      const int64_t last = std::min(hit, first + height);
      const int64_t bytes = std::min(width - begin, kEmbeddingColumns);
      for (int64_t k = first; k < last; ++k) {
        if (k + kRowsAhead < last) {
          const int64_t later = k + kRowsAhead;
          ask_for(args.dout.data<T>() + tokens[starts[later]] * width + begin,
                  bytes * static_cast<int64_t>(sizeof(T)));
          ask_for(dtable + rows[later] * width + begin, bytes * 4);
        }
        add_token_rows(args.dout.data<T>(), width, tokens + starts[k], starts[k + 1] - starts[k],
                       args.dtable.beta != 0, dtable + rows[k] * width, begin,
                       std::min(width, begin + kEmbeddingColumns));
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

constexpr int64_t kAhead = 2;  // tokens

// The row of a table of `rows` rows that a token's id names; -1 where a part has no such row.
template <class Args>
int64_t row_of(const char* kernel, const Args& args, int64_t token, int64_t rows) {
  const int64_t id = args.ids.template data<int32_t>()[token], row = id - args.first;
  if (row >= 0 && row < rows) return row;
  MG_CHECK(args.part, "{}: id {} of token {} is outside of the table of {} rows", kernel, id, token,
           rows);
  return -1;
}

}  // namespace

void embedding(const EmbeddingArgs& args, Stream& stream) {
  check(args);
  const int64_t rows = args.table.size(0), bytes = args.table.size(1) * size_of(args.table.dtype());
  const int32_t* ids = args.ids.data<int32_t>();
  const auto* table = static_cast<const std::byte*>(args.table.raw());
  auto* out = static_cast<std::byte*>(args.out.raw());
  const bool streamed = is_streamed(args.out, args.table.size(1), {});
  for_blocks(stream, args.ids.elements(), rows_per_block(args.table.size(1)),
             [&](int64_t begin, int64_t end) {
               for (int64_t t = begin; t < end; ++t) {
                 const int64_t row = row_of("embedding", args, t, rows);
                 const int64_t later = ids[std::min(t + kAhead, end - 1)] - args.first;
                 if (later >= 0 && later < rows) ask_for(table + later * bytes, bytes);
                 if (row < 0) {
                   std::memset(out + t * bytes, 0, static_cast<size_t>(bytes));
                 } else if (streamed) {
                   copy_streamed(table + row * bytes, out + t * bytes, bytes);
                 } else {
                   std::memcpy(out + t * bytes, table + row * bytes, static_cast<size_t>(bytes));
                 }
               }
             });
}

Tensor embedding_backward_scratch(const EmbeddingBackwardArgs& args, Stream& stream) {
  const int64_t count = args.ids.elements(), rows = args.dtable.out.size(0);
  return Tensor::empty(stream.scratch(), {rows + 1 + 3 * count + 1}, DType::i32, "tokens by row");
}

// The tokens are counted and sorted by row (a stable counting sort), so that each row of the table
// is written by one thread, from its tokens in ascending order.
void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) {
  check(args);
  require_storage_type("embedding_backward", args.dout.dtype());
  const int64_t count = args.ids.elements(), table_rows = args.dtable.out.size(0),
                width = args.dtable.out.size(1);
  float* dtable = args.dtable.out.data<float>();
  const Tensor memory = embedding_backward_scratch(args, stream);
  int32_t* next = memory.data<int32_t>();
  int32_t* tokens = next + table_rows + 1;
  int32_t* rows = tokens + count;
  int32_t* starts = rows + count;

  std::fill_n(next, table_rows + 1, 0);
  for (int64_t t = 0; t < count; ++t) {
    const int64_t row = row_of("embedding_backward", args, t, table_rows);
    if (row >= 0) ++next[row + 1];
  }
  int64_t hit = 0;
  for (int64_t row = 0; row < table_rows; ++row) {
    if (next[row + 1] != 0) {
      rows[hit] = static_cast<int32_t>(row);
      starts[hit++] = next[row];
    }
    next[row + 1] += next[row];
  }
  starts[hit] = next[table_rows];
  if (args.dtable.beta == 0) {
    for_blocks(stream, table_rows, rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t first = row;
        while (row < end && next[row] == next[row + 1]) ++row;
        std::fill_n(dtable + first * width, (row - first) * width, 0.0f);
      }
    });
  }
  for (int64_t t = 0; t < count; ++t) {
    const int64_t row = row_of("embedding_backward", args, t, table_rows);
    if (row >= 0) tokens[next[row]++] = static_cast<int32_t>(t);
  }
  HWY_DYNAMIC_DISPATCH(add_embedding_rows)(args, tokens, rows, starts, hit, stream);
}

}  // namespace megatron::kernels::cpu
#endif
