#include "parallel/placement.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/philox.h"

namespace megatron::parallel {

Shape Part::stored_shape() const {
  Shape shape = global;
  if (transposed) {
    MG_ASSERT(global.rank() == 2);
    shape.set(0, global[1]);
    shape.set(1, global[0]);
  }
  return shape;
}

namespace {

struct Extent {
  int64_t outer = 1, length = 1, inner = 1;  // products of the sizes before, at and after the axis
};

Extent extent(const Shape& shape, int axis) {
  MG_ASSERT(axis >= 0 && axis < shape.rank());
  Extent e;
  for (int d = 0; d < axis; ++d) e.outer *= shape[d];
  e.length = shape[axis];
  for (int d = axis + 1; d < shape.rank(); ++d) e.inner *= shape[d];
  return e;
}

struct Run {
  int64_t canonical = 0, local = 0, size = 0;
};

// Calls f for each maximal run of one part.
template <class F>
void for_each_run_of_part(const Part& part, const Shape& local_shape, F&& f) {
  const Extent global = extent(part.global, part.axis), local = extent(local_shape, part.axis);
  MG_ASSERT(global.outer == local.outer && global.inner == local.inner);
  std::vector<Slice> slices = part.slices;
  std::sort(slices.begin(), slices.end(),
            [](const Slice& a, const Slice& b) { return a.global_begin < b.global_begin; });

  Run pending;
  for (int64_t o = 0; o < global.outer; ++o) {
    for (const Slice& s : slices) {
      MG_ASSERT(s.size >= 0 && s.global_begin >= 0 && s.global_begin + s.size <= global.length);
      MG_ASSERT(s.local_begin >= 0 && s.local_begin + s.size <= local.length);
      const Run run = {(o * global.length + s.global_begin) * global.inner,
                       (o * local.length + s.local_begin) * local.inner, s.size * global.inner};
      if (run.size == 0) continue;
      if (run.canonical == pending.canonical + pending.size &&
          run.local == pending.local + pending.size) {
        pending.size += run.size;
        continue;
      }
      if (pending.size > 0) f(pending);
      pending = run;
    }
  }
  if (pending.size > 0) f(pending);
}

constexpr int64_t kDrawBlock = 1 << 16;  // elements drawn by one thread at a time; even

template <class T>
T convert(double value) {
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// Elements [begin, end) of the stream; out[0] is element `origin`.
template <class T>
void draw_uniform(T* out, int64_t origin, const RandomStream& stream, double width, int64_t begin,
                  int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    out[i - origin] = convert<T>(width * (2 * stream.uniform(static_cast<uint64_t>(i)) - 1));
}

double xavier_width(const Placement& placement) {
  int64_t rows = 0, columns = 1;
  for (const Part& part : placement.parts) {
    rows += part.global[0];
    columns = part.global.elements() / std::max<int64_t>(part.global[0], 1);
  }
  return std::sqrt(6.0 / static_cast<double>(rows + columns));
}

// The same of normals.
template <class T>
void draw(T* out, int64_t origin, const RandomStream& stream, double deviation, int64_t begin,
          int64_t end) {
  for (int64_t pair = begin / 2; 2 * pair < end; ++pair) {
    const auto [even, odd] = stream.normals(static_cast<uint64_t>(pair));
    if (2 * pair >= begin) out[2 * pair - origin] = convert<T>(deviation * even);
    if (2 * pair + 1 < end) out[2 * pair + 1 - origin] = convert<T>(deviation * odd);
  }
}

template <class T>
void fill_parts(const Placed& placed, uint64_t seed, ThreadPool& pool) {
  T* const values = placed.parameter.value.data<T>();
  const bool uniform = placed.init.kind == Init::Kind::xavier_uniform;
  const bool drawn = placed.init.kind == Init::Kind::normal || uniform;
  const double width = uniform ? xavier_width(placed.placement) : placed.init.deviation;
  const T constant = convert<T>(placed.init.kind == Init::Kind::ones ? 1 : 0);
  for (const Part& part : placed.placement.parts) {
    const RandomStream stream(seed, part.name);
    for_each_run_of_part(part, placed.parameter.value.shape(), [&](const Run& run) {
      T* const out = values + run.local;
      if (!drawn) {
        std::fill(out, out + run.size, constant);
        return;
      }
      pool.parallel_for((run.size + kDrawBlock - 1) / kDrawBlock, [&](int64_t block, int) {
        const int64_t begin = run.canonical + block * kDrawBlock;
        const int64_t end = std::min(begin + kDrawBlock, run.canonical + run.size);
        if (uniform) {
          draw_uniform(out, run.canonical, stream, width, begin, end);
        } else {
          draw(out, run.canonical, stream, width, begin, end);
        }
      });
    });
  }
}

}  // namespace

void initialize(Placed& placed, uint64_t seed, ThreadPool& pool) {
  Tensor& value = placed.parameter.value;
  MG_ASSERT(value.is_contiguous());
  if (!value.device().has_data()) return;
  if (value.bytes() > 0) std::memset(value.raw(), 0, static_cast<size_t>(value.bytes()));
  switch (value.dtype()) {
    case DType::f64: return fill_parts<double>(placed, seed, pool);
    case DType::f32: return fill_parts<float>(placed, seed, pool);
    case DType::bf16: return fill_parts<bf16>(placed, seed, pool);
    case DType::f16: return fill_parts<f16>(placed, seed, pool);
    default: break;
  }
  MG_ASSERT(is_floating(value.dtype()));
}

void for_each_run(
    const Placed& placed,
    const std::function<void(const Part&, int64_t canonical, int64_t local, int64_t size)>& f) {
  for (const Part& part : placed.placement.parts) {
    for_each_run_of_part(part, placed.parameter.value.shape(),
                         [&](const Run& run) { f(part, run.canonical, run.local, run.size); });
  }
}

}  // namespace megatron::parallel
