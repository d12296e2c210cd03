#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/token_rows.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Adds a token's rows, which may lie anywhere, and prefetches those of the next token.
template <class T>
void add_rows(const std::vector<const T*>& rows, const std::vector<const T*>& later, int64_t width,
              Output<T> out) {
  for_pairs(0, width, [&](int64_t i, auto n) {
    for (const T* row : later) __builtin_prefetch(row + i);
    VectorPair sum{hn::Zero(kFloats), hn::Zero(kFloats)};
    for (const T* row : rows) {
      const VectorPair v = load_pair(row + i, n);
      sum = {hn::Add(sum.a, v.a), hn::Add(sum.b, v.b)};
    }
    store_pair(sum, out + i, n);
  });
}

void run_sum_rows(const SumRowsArgs& args, Stream& stream) {
  for_storage_type("sum_rows", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool listed = args.index.defined();
    const int64_t width = args.out.size(1), k = listed ? args.index.size(1) : args.x.size(1);
    const T* x = args.x.data<T>();
    const int32_t* index = listed ? args.index.data<int32_t>() : nullptr;
    const Output<T> out = output_of<T>(args.out, width, {});
    const auto gather = [&](int64_t token, std::vector<const T*>& rows) {
      rows.clear();
      for (int64_t j = 0; j < k; ++j) {
        if (!listed) {
          rows.push_back(x + token * args.x.stride(0) + j * args.x.stride(1));
        } else if (const int64_t row = index[token * k + j]; row >= 0) {
          rows.push_back(x + row * width);
        }
      }
    };
    const int64_t height = rows_per_block(width * std::max<int64_t>(1, k));
    for_blocks(stream, args.out.size(0), height, [&](int64_t begin, int64_t end) {
      std::vector<const T*> rows, later;
      gather(begin, rows);
      for (int64_t t = begin; t < end; ++t) {
        later.clear();
        if (t + 1 < end) gather(t + 1, later);
        add_rows(rows, later, width, out + t * width);
        std::swap(rows, later);
      }
    });
  });
}

void run_scale_rows(const ScaleRowsArgs& args, Stream& stream) {
  for_storage_type("scale_rows", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t width = args.x.size(1);
    const T* x = args.x.data<T>();
    const float* factors = args.factors.data<float>();
    const Output<T> out = output_of<T>(args.out, width, {x});
    for_blocks(stream, args.x.size(0), rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const V factor = set(factors[r]);
        for_pairs(r * width, (r + 1) * width, [&](int64_t i, auto n) {
          const VectorPair v = load_pair(x + i, n);
          store_pair({hn::Mul(v.a, factor), hn::Mul(v.b, factor)}, out + i, n);
        });
      }
    });
  });
}

void run_scale_rows_backward(const ScaleRowsBackwardArgs& args, Stream& stream) {
  for_storage_type("scale_rows_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t width = args.x.size(1);
    const T* x = args.x.data<T>();
    const T* dout = args.dout.data<T>();
    const float* factors = args.factors.data<float>();
    float* dfactors = args.dfactors.data<float>();
    const Output<T> dx = output_of<T>(args.dx, width, {x, dout});
    for_blocks(stream, args.x.size(0), rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const V factor = set(factors[r]);
        const int64_t first = r * width;
        dfactors[r] = sum_of_twos<T>(width, [&](int64_t i, auto n) {
          const VectorPair v = load_pair(x + first + i, n), d = load_pair(dout + first + i, n);
          store_pair({hn::Mul(d.a, factor), hn::Mul(d.b, factor)}, dx + (first + i), n);
          return VectorPair{hn::Mul(v.a, d.a), hn::Mul(v.b, d.b)};
        });
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(run_sum_rows);
HWY_EXPORT(run_scale_rows);
HWY_EXPORT(run_scale_rows_backward);

// Copies rows of any type.
void take_rows(const TakeRowsArgs& args, Stream& stream) {
  constexpr int64_t kBytesAhead = 8192;
  const int64_t width = args.x.size(1), bytes = width * size_of(args.x.dtype());
  if (args.out.elements() == 0) return;
  const auto* x = static_cast<const std::byte*>(args.x.raw());
  auto* out = static_cast<std::byte*>(args.out.raw());
  const int32_t* index = args.index.data<int32_t>();
  const bool streamed = is_streamed(args.out, width, {});
  const int64_t rows_ahead = ceil_div(kBytesAhead, bytes);
  const auto row = [&](int64_t r) {
    return index[r] < 0 ? nullptr : x + index[r] / args.share * bytes;
  };
  for_blocks(stream, args.out.size(0), rows_per_block(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const std::byte* from = row(r);
      const std::byte* later = r + rows_ahead < end ? row(r + rows_ahead) : nullptr;
      if (from != nullptr && streamed) {
        copy_streamed(from, out + r * bytes, bytes, later == nullptr ? from : later);
        continue;
      }
      if (later != nullptr) prefetch(later, bytes);
      if (from == nullptr) {
        std::memset(out + r * bytes, 0, static_cast<size_t>(bytes));
      } else {
        std::memcpy(out + r * bytes, from, static_cast<size_t>(bytes));
      }
    }
  });
}

void sum_rows(const SumRowsArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(run_sum_rows)(args, stream);
}

void scale_rows(const ScaleRowsArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(run_scale_rows)(args, stream);
}

void scale_rows_backward(const ScaleRowsBackwardArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(run_scale_rows_backward)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
