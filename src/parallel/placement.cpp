#include "parallel/placement.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/philox.h"
#include "parallel/tensor_parallel.h"

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

constexpr int64_t kDrawBlock = 1 << 16;  // elements drawn by one thread at a time

template <class T>
T convert(double value) {
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// Elements [begin, end) of the stream; out[0] is element `begin`.
template <class T>
void draw_uniform(T* out, const RandomStream& stream, double width, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    out[i - begin] = convert<T>(width * (2 * stream.uniform(static_cast<uint64_t>(i)) - 1));
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
void draw(T* out, const RandomStream& stream, double deviation, int64_t begin, int64_t end) {
  for (int64_t pair = begin / 2; 2 * pair < end; ++pair) {
    const auto [even, odd] = stream.normals(static_cast<uint64_t>(pair));
    if (2 * pair >= begin) out[2 * pair - begin] = convert<T>(deviation * even);
    if (2 * pair + 1 < end) out[2 * pair + 1 - begin] = convert<T>(deviation * odd);
  }
}

// What a part gives to elements [begin, begin + size) of the parameter, local counted from begin,
// in pieces of at most kDrawBlock elements.
std::vector<Run> pieces_of(const Part& part, const Shape& local_shape, int64_t begin,
                           int64_t size) {
  std::vector<Run> pieces;
  for_each_run_of_part(part, local_shape, [&](const Run& run) {
    const int64_t first = std::max(run.local, begin);
    const int64_t end = std::min(run.local + run.size, begin + size);
    for (int64_t at = first; at < end; at += kDrawBlock) {
      pieces.push_back(
          {run.canonical + at - run.local, at - begin, std::min<int64_t>(kDrawBlock, end - at)});
    }
  });
  return pieces;
}

template <class T>
void fill_parts(const Shard& shard, uint64_t seed, ThreadPool& pool) {
  const Placed& placed = *shard.placed;
  T* const values = shard.value.data<T>();
  const bool uniform = placed.init.kind == Init::Kind::xavier_uniform;
  const bool drawn = placed.init.kind == Init::Kind::normal || uniform;
  const double width = uniform ? xavier_width(placed.placement) : placed.init.deviation;
  const T constant = convert<T>(placed.init.kind == Init::Kind::ones ? 1 : 0);
  for (const Part& part : placed.placement.parts) {
    const RandomStream stream(seed, part.name);
    const std::vector<Run> pieces =
        pieces_of(part, placed.parameter.value.shape(), shard.begin, shard.size());
    pool.parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t index, int) {
      const Run& piece = pieces[static_cast<size_t>(index)];
      T* const out = values + piece.local;
      if (!drawn) {
        std::fill(out, out + piece.size, constant);
      } else if (uniform) {
        draw_uniform(out, stream, width, piece.canonical, piece.canonical + piece.size);
      } else {
        draw(out, stream, width, piece.canonical, piece.canonical + piece.size);
      }
    });
  }
}

// What lies in both: rows of a part and rows that are held, as rows of the part's tensor and of
// what is held.
std::vector<Slice> common(std::span<const Slice> of_part, std::span<const Slice> held) {
  std::vector<Slice> found;
  for (const Slice& p : of_part) {
    for (const Slice& h : held) {
      const int64_t begin = std::max(p.local_begin, h.global_begin);
      const int64_t end = std::min(p.local_begin + p.size, h.global_begin + h.size);
      if (begin >= end) continue;
      const Slice slice = {p.global_begin + begin - p.local_begin,
                           h.local_begin + begin - h.global_begin, end - begin};
      if (!found.empty() && found.back().global_begin + found.back().size == slice.global_begin &&
          found.back().local_begin + found.back().size == slice.local_begin) {
        found.back().size += slice.size;
      } else {
        found.push_back(slice);
      }
    }
  }
  return found;
}

// The whole of the part's tensor is the whole of the parameter.
bool is_everything(const Part& part) {
  return part.slices.size() == 1 && part.slices[0].global_begin == 0 &&
         part.slices[0].local_begin == 0 && part.slices[0].size == part.global[part.axis];
}

}  // namespace

std::vector<Slice> slices_of(const Division& division, int ranks, int rank) {
  std::vector<Slice> slices;
  int64_t block_begin = 0, local_begin = 0;
  for (const int64_t block : division.blocks) {
    const Slice share = share_of(block, ranks, rank);
    slices.push_back({block_begin + share.global_begin, local_begin, share.size});
    block_begin += block;
    local_begin += share.size;
  }
  return slices;
}

Placement narrowed(const Placement& whole, int axis, std::span<const Slice> slices) {
  Placement placement = whole;
  for (Part& part : placement.parts) {
    if (part.axis != axis) {
      MG_ASSERT(placement.parts.size() == 1 && is_everything(part));
      part.axis = axis;
      part.slices = {{0, 0, part.global[axis]}};
    }
    part.slices = common(part.slices, slices);
  }
  return placement;
}

void initialize(const Shard& shard, uint64_t seed, ThreadPool& pool) {
  MG_ASSERT(shard.value.is_contiguous() && shard.begin >= 0 &&
            shard.begin + shard.size() <= shard.placed->parameter.value.elements());
  if (!shard.value.device().has_data()) return;
  if (!shard.value.device().is_host()) {
    Shard drawn = shard;
    drawn.value = on_host(shard.value, false);
    initialize(drawn, seed, pool);
    return copy_bytes_from(shard.value, bytes_of(drawn.value));
  }
  const Tensor& value = shard.value;
  if (value.bytes() > 0) std::memset(value.raw(), 0, static_cast<size_t>(value.bytes()));
  switch (value.dtype()) {
    case DType::f64: return fill_parts<double>(shard, seed, pool);
    case DType::f32: return fill_parts<float>(shard, seed, pool);
    case DType::bf16: return fill_parts<bf16>(shard, seed, pool);
    case DType::f16: return fill_parts<f16>(shard, seed, pool);
    default: break;
  }
  MG_ASSERT(is_floating(value.dtype()));
}

void initialize(Placed& placed, uint64_t seed, ThreadPool& pool) {
  initialize(Shard{.placed = &placed, .value = placed.parameter.value}, seed, pool);
}

void allocate(std::span<Placed* const> parameters, Runtime& runtime) {
  for (Placed* placed : parameters) {
    Parameter& p = placed->parameter;
    p.value = Tensor::empty(runtime.arena(MemoryClass::parameters), p.value.shape(),
                            p.value.dtype(), p.name);
  }
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
