#include "kernels/cpu/gemm.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/panels.h"

namespace megatron::kernels::cpu {

namespace {

// The product as plain numbers: `batch` products, strides in elements.
struct Problem {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::byte* out = nullptr;
  const std::byte* bias = nullptr;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t batch_a = 0, batch_b = 0, batch_c = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType in = DType::f32, result = DType::f32, bias_type = DType::f32;
};

// Row stride of a matrix; a single row has any.
int64_t row_stride(const Tensor& t) { return t.size(-2) == 1 ? t.size(-1) : t.stride(-2); }

Problem describe(const GemmArgs& args) {
  const Tensor& a = args.a;
  const Tensor& b = args.b;
  const Tensor& out = args.out;
  const bool batched = out.rank() == 3;
  Problem p;
  p.batch = batched ? out.size(0) : 1;
  p.m = out.size(-2);
  p.n = out.size(-1);
  p.k = a.size(args.transpose_a ? -2 : -1);
  p.lda = row_stride(a);
  p.ldb = row_stride(b);
  p.ldc = row_stride(out);
  if (batched) {
    p.batch_a = a.stride(0);
    p.batch_b = b.stride(0);
    p.batch_c = out.stride(0);
  }
  p.transpose_a = args.transpose_a;
  p.transpose_b = args.transpose_b;
  p.accumulate = args.beta == 1;
  p.in = a.dtype();
  p.result = out.dtype();
  if (p.batch * p.m * p.n == 0) return p;
  p.out = static_cast<std::byte*>(out.raw());
  if (p.k > 0) {
    p.a = static_cast<const std::byte*>(a.raw());
    p.b = static_cast<const std::byte*>(b.raw());
  }
  if (args.bias.defined()) {
    p.bias = static_cast<const std::byte*>(args.bias.raw());
    p.bias_type = args.bias.dtype();
  }
  return p;
}

// The part of a problem that one block computes: rows [i, i + m), columns [j, j + n) of product
// `g`.
struct Block {
  int64_t g, i, j, m, n;
};

const std::byte* a_at(const Problem& p, const Block& block, int64_t k) {
  const int64_t offset = p.transpose_a ? k * p.lda + block.i : block.i * p.lda + k;
  return p.a + (block.g * p.batch_a + offset) * size_of(p.in);
}
const std::byte* b_at(const Problem& p, const Block& block, int64_t k) {
  const int64_t offset = p.transpose_b ? block.j * p.ldb + k : k * p.ldb + block.j;
  return p.b + (block.g * p.batch_b + offset) * size_of(p.in);
}
std::byte* out_at(const Problem& p, const Block& block) {
  return p.out + (block.g * p.batch_c + block.i * p.ldc + block.j) * size_of(p.result);
}
const std::byte* bias_at(const Problem& p, const Block& block) {
  return p.bias == nullptr ? nullptr : p.bias + block.j * size_of(p.bias_type);
}

void run_direct(const Problem& p, const Block& block) {
  multiply({.m = block.m,
            .n = block.n,
            .k = p.k,
            .a = a_at(p, block, 0),
            .b = b_at(p, block, 0),
            .c = out_at(p, block),
            .bias = bias_at(p, block),
            .lda = p.lda,
            .ldb = p.ldb,
            .ldc = p.ldc,
            .transpose_a = p.transpose_a,
            .transpose_b = p.transpose_b,
            .accumulate = p.accumulate,
            .in = p.in,
            .out = p.result,
            .bias_type = p.bias_type});
}

double load(const std::byte* p, DType type, int64_t i) {
  if (type == DType::f64) return reinterpret_cast<const double*>(p)[i];
  if (type == DType::f32) return reinterpret_cast<const float*>(p)[i];
  return static_cast<float>(reinterpret_cast<const bf16*>(p)[i]);
}

// out = sums + bias + (accumulate ? out : 0), rounded once. sums: rows of block.n, or null for
// zeros.
template <class Sum, class Out>
void store(const Problem& p, const Block& block, const Sum* sums) {
  const std::byte* bias = bias_at(p, block);
  Out* out = reinterpret_cast<Out*>(out_at(p, block));
  for (int64_t i = 0; i < block.m; ++i, out += p.ldc) {
    for (int64_t j = 0; j < block.n; ++j) {
      Sum value = sums == nullptr ? Sum{0} : sums[i * block.n + j];
      if (bias != nullptr) value += static_cast<Sum>(load(bias, p.bias_type, j));
      if (p.accumulate) value += static_cast<Sum>(out[j]);
      out[j] = static_cast<Out>(value);
    }
  }
}

void store_any(const Problem& p, const Block& block, const float* sums) {
  if (p.result == DType::f64) return store<double, double>(p, block, nullptr);
  if (p.result == DType::f32) return store<float, float>(p, block, sums);
  store<float, bf16>(p, block, sums);
}

// rows x cols elements of type `type`, rows `stride` apart, as dense f32.
const float* widen(Slot slot, const std::byte* from, DType type, int64_t rows, int64_t cols,
                   int64_t stride) {
  float* to = reinterpret_cast<float*>(thread_buffer(slot, rows * cols * 4));
  for (int64_t i = 0; i < rows; ++i) {
    if (type == DType::f32) {
      std::copy_n(reinterpret_cast<const float*>(from) + i * stride, cols, to + i * cols);
    } else {
      const bf16* row = reinterpret_cast<const bf16*>(from) + i * stride;
      for (int64_t j = 0; j < cols; ++j) to[i * cols + j] = static_cast<float>(row[j]);
    }
  }
  return to;
}

// Through dense f32 copies: for bf16 on a processor without bf16 products, and for rows that
// overlap. The sum over k is cut at multiples of kDepth, which bounds the copies.
void run_widened(const Problem& p, const Block& block) {
  constexpr int64_t kDepth = 1024;
  float* sums = reinterpret_cast<float*>(thread_buffer(Slot::c, block.m * block.n * 4));
  for (int64_t k = 0; k < p.k; k += kDepth) {
    const int64_t depth = std::min(kDepth, p.k - k);
    const int64_t rows_a = p.transpose_a ? depth : block.m,
                  cols_a = p.transpose_a ? block.m : depth;
    const int64_t rows_b = p.transpose_b ? block.n : depth,
                  cols_b = p.transpose_b ? depth : block.n;
    multiply({.m = block.m,
              .n = block.n,
              .k = depth,
              .a = widen(Slot::a, a_at(p, block, k), p.in, rows_a, cols_a, p.lda),
              .b = widen(Slot::b, b_at(p, block, k), p.in, rows_b, cols_b, p.ldb),
              .c = sums,
              .lda = cols_a,
              .ldb = cols_b,
              .ldc = block.n,
              .transpose_a = p.transpose_a,
              .transpose_b = p.transpose_b,
              .accumulate = k > 0});
  }
  store_any(p, block, sums);
}

// The forward form, rows of a by rows of b: each sum is one chain over k in ascending order, in f32
// words or pairs of bf16, wherever the element stands. Cuts of k continue the chain.
void run_panels(const Problem& p, const Block& block, WordKind kind) {
  constexpr int64_t kDepth = 256;  // words: a panel of b stays in the first-level cache
  constexpr int64_t kFewRows = 64;
  const int64_t step = kind == WordKind::f32 ? kDepth : 2 * kDepth;
  const int64_t stride = round_up(block.n, kPanel);
  float* sums = reinterpret_cast<float*>(thread_buffer(Slot::c, block.m * stride * 4));
  uint32_t* rows = reinterpret_cast<uint32_t*>(thread_buffer(Slot::a, block.m * kDepth * 4));
  uint32_t* panel = reinterpret_cast<uint32_t*>(thread_buffer(Slot::b, kPanel * kDepth * 4));
  for (int64_t k = 0; k < p.k; k += step) {
    const int64_t depth = std::min(step, p.k - k), width = words(kind, depth);
    rows_to_words(kind, {a_at(p, block, k), p.lda, p.in}, block.m, depth, rows);
    for (int64_t j = 0; j < block.n; j += kPanel) {
      const int64_t columns = std::min(kPanel, block.n - j);
      const std::byte* b = b_at(p, block, k) + j * p.ldb * size_of(p.in);
      const bool ahead = block.m <= kFewRows && j + 2 * kPanel <= block.n;
      transpose_to_panel(kind, {b, p.ldb, p.in}, columns, depth,
                         ahead ? b + kPanel * p.ldb * size_of(p.in) : nullptr, panel);
      tile_product(kind, {.m = block.m,
                          .n = kPanel,
                          .k = width,
                          .a = rows,
                          .a_row = width,
                          .a_step = 1,
                          .b = panel,
                          .panel = 0,
                          .c = sums + j,
                          .ldc = stride,
                          .accumulate = k > 0});
      if (k + depth < p.k) continue;
      const std::byte* bias = bias_at(p, block);
      store_sums({.rows = block.m,
                  .columns = columns,
                  .sums = sums + j,
                  .sums_stride = stride,
                  .bias = bias == nullptr ? nullptr : bias + j * size_of(p.bias_type),
                  .bias_type = p.bias_type,
                  .accumulate = p.accumulate,
                  .out = out_at(p, block) + j * size_of(p.result),
                  .out_stride = p.ldc,
                  .out_type = p.result});
    }
  }
}

// oneDNN has no f64: row k of b times column k of a, added to the block's sums; one chain of sums
// an element.
void run_f64(const Problem& p, const Block& block) {
  double* sums = reinterpret_cast<double*>(thread_buffer(Slot::c, block.m * block.n * 8));
  double* row = reinterpret_cast<double*>(thread_buffer(Slot::b, block.n * 8));
  const double* a = reinterpret_cast<const double*>(a_at(p, block, 0));
  const double* b = reinterpret_cast<const double*>(b_at(p, block, 0));
  const int64_t a_row = p.transpose_a ? 1 : p.lda, a_col = p.transpose_a ? p.lda : 1;
  const int64_t b_row = p.transpose_b ? 1 : p.ldb, b_col = p.transpose_b ? p.ldb : 1;
  std::fill_n(sums, block.m * block.n, 0.0);
  for (int64_t k = 0; k < p.k; ++k) {
    for (int64_t j = 0; j < block.n; ++j) row[j] = b[k * b_row + j * b_col];
    for (int64_t i = 0; i < block.m; ++i) {
      const double factor = a[i * a_row + k * a_col];
      double* to = sums + i * block.n;
      for (int64_t j = 0; j < block.n; ++j) to[j] += factor * row[j];
    }
  }
  store<double, double>(p, block, sums);
}

bool forward_form(const Problem& p) {
  return p.in != DType::f64 && !p.transpose_a && p.transpose_b;
}

// Blocks are cut by the shape alone. 384 columns keep a block's slice of b in the second-level
// cache and are what oneDNN's f32 kernels run best at; bf16 and panels take twice as many. Where
// that leaves few blocks, they shrink, so that every core has some.
struct BlockSize {
  int64_t m, n;
};

BlockSize block_size(const Problem& p) {
  constexpr int64_t kFewBlocks = 16;
  if (p.in == DType::f64) return {64, 64};
  BlockSize size{512, p.in == DType::bf16 || forward_form(p) ? 768 : 384};
  const auto blocks = [&] {
    return p.batch * ((p.m + size.m - 1) / size.m) * ((p.n + size.n - 1) / size.n);
  };
  while (blocks() < kFewBlocks && size.m > 128 && p.m > size.m / 2) size.m /= 2;
  while (blocks() < kFewBlocks && size.n > 96 && p.n > size.n / 2) size.n /= 2;
  return size;
}

bool rows_overlap(const Problem& p) {
  return p.lda < (p.transpose_a ? p.m : p.k) || p.ldb < (p.transpose_b ? p.k : p.n);
}

void run(const Problem& p, const Block& block, Bf16Products products) {
  const bool narrow = p.in == DType::bf16, native = products == Bf16Products::native;
  if (p.k == 0) return store_any(p, block, nullptr);
  if (p.in == DType::f64) return run_f64(p, block);
  if (forward_form(p))
    return run_panels(p, block, narrow && native ? WordKind::bf16_pair : WordKind::f32);
  if ((narrow && !native) || rows_overlap(p)) return run_widened(p, block);
  run_direct(p, block);
}

}  // namespace

void gemm(const GemmArgs& args, Stream& stream, Bf16Products products) {
  check(args);
  const Problem p = describe(args);
  if (p.batch * p.m * p.n == 0) return;
  const BlockSize size = block_size(p);
  const int64_t rows = (p.m + size.m - 1) / size.m, cols = (p.n + size.n - 1) / size.n;
  stream.pool().parallel_for(p.batch * rows * cols, [&](int64_t index, int) {
    Block block{.g = index / (rows * cols),
                .i = index / cols % rows * size.m,
                .j = index % cols * size.n,
                .m = 0,
                .n = 0};
    block.m = std::min(size.m, p.m - block.i);
    block.n = std::min(size.n, p.n - block.j);
    run(p, block, products);
  });
}

void gemm(const GemmArgs& args, Stream& stream) { gemm(args, stream, bf16_products()); }

}  // namespace megatron::kernels::cpu
