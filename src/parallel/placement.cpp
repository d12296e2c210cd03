#include "parallel/placement.h"

#include <algorithm>
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

template <class T>
void draw(T* out, const RandomStream& stream, double deviation, int64_t index, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const double value = deviation * stream.normal(static_cast<uint64_t>(index + i));
    if constexpr (sizeof(T) == 2) {
      out[i] = T(static_cast<float>(value));
    } else {
      out[i] = static_cast<T>(value);
    }
  }
}

template <class T>
void fill_parts(const Placed& placed, uint64_t seed) {
  T* const values = placed.parameter.value.data<T>();
  const bool normal = placed.init.kind == Init::Kind::normal;
  const T constant = T(placed.init.kind == Init::Kind::ones ? 1.0f : 0.0f);
  for (const Part& part : placed.placement.parts) {
    const RandomStream stream(seed, part.name);
    for_each_run_of_part(part, placed.parameter.value.shape(), [&](const Run& run) {
      T* const out = values + run.local;
      if (normal) {
        draw(out, stream, placed.init.deviation, run.canonical, run.size);
      } else {
        std::fill(out, out + run.size, constant);
      }
    });
  }
}

}  // namespace

void initialize(Placed& placed, uint64_t seed) {
  Tensor& value = placed.parameter.value;
  MG_ASSERT(value.is_contiguous());
  if (!value.device().has_data()) return;
  if (value.bytes() > 0) std::memset(value.raw(), 0, static_cast<size_t>(value.bytes()));
  switch (value.dtype()) {
    case DType::f64: return fill_parts<double>(placed, seed);
    case DType::f32: return fill_parts<float>(placed, seed);
    case DType::bf16: return fill_parts<bf16>(placed, seed);
    case DType::f16: return fill_parts<f16>(placed, seed);
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
