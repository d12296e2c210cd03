#include "parallel/placement.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/table.h"
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

double xavier_width(const Placement& placement) {
  int64_t rows = 0, columns = 1;
  for (const Part& part : placement.parts) {
    rows += part.global[0];
    columns = part.global.elements() / std::max<int64_t>(part.global[0], 1);
  }
  return std::sqrt(6.0 / static_cast<double>(rows + columns));
}

// `count` runs of one size that lie as far apart in the canonical tensor as here.
struct Runs {
  Run first;
  int64_t count = 1, canonical_step = 0, local_step = 0;

  // Whether `run` goes on with them; then it is counted.
  bool take(const Run& run) {
    const int64_t canonical = run.canonical - first.canonical, local = run.local - first.local;
    if (run.size != first.size || canonical < 0 || local < 0) return false;
    if (count == 1) {
      canonical_step = canonical;
      local_step = local;
    }
    if (canonical != count * canonical_step || local != count * local_step) return false;
    ++count;
    return true;
  }
};

// What a part gives to elements [begin, begin + size) of the parameter, local counted from begin.
std::vector<Runs> runs_of(const Part& part, const Shape& local_shape, int64_t begin, int64_t size) {
  std::vector<Runs> all;
  for_each_run_of_part(part, local_shape, [&](const Run& run) {
    const int64_t first = std::max(run.local, begin);
    const int64_t end = std::min(run.local + run.size, begin + size);
    if (first >= end) return;
    const Run kept = {run.canonical + first - run.local, first - begin, end - first};
    if (all.empty() || !all.back().take(kept)) all.push_back({kept});
  });
  return all;
}

// The elements of `values` [n] that runs fill, a run a row.
Tensor rows_of(const Tensor& values, const Runs& runs) {
  const int64_t extent = (runs.count - 1) * runs.local_step + runs.first.size;
  const std::array<int64_t, 2> strides = {runs.local_step, 1};
  return values.slice(0, runs.first.local, extent)
      .as_strided({runs.count, runs.first.size}, strides);
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

void initialize(const Shard& shard, uint64_t seed, Stream& stream) {
  MG_ASSERT(shard.value.is_contiguous() && shard.begin >= 0 &&
            shard.begin + shard.size() <= shard.placed->parameter.value.elements());
  MG_ASSERT(is_floating(shard.value.dtype()));
  if (!shard.value.device().has_data()) return;
  const ParameterSpec& placed = *shard.placed;
  const kernels::Table& kernels = kernels::table(stream);
  const Tensor values = shard.value.view({shard.size()});
  kernels.fill({.out = values, .value = 0}, stream);
  if (placed.init.kind == Init::Kind::zeros) return;
  const bool uniform = placed.init.kind == Init::Kind::xavier_uniform;
  kernels::DrawArgs draws{
      .kind = uniform ? kernels::DrawArgs::Kind::uniform : kernels::DrawArgs::Kind::normal,
      .scale = uniform ? xavier_width(placed.placement) : placed.init.standard_deviation,
      .seed = seed};
  for (const Part& part : placed.placement.parts) {
    draws.stream = hash_name(part.name);
    for (const Runs& runs :
         runs_of(part, placed.parameter.value.shape(), shard.begin, shard.size())) {
      const Tensor rows = rows_of(values, runs);
      if (placed.init.kind == Init::Kind::ones) {
        for (int64_t row = 0; row < runs.count; ++row)
          kernels.fill({.out = rows.slice(0, row, 1), .value = 1}, stream);
        continue;
      }
      draws.first = runs.first.canonical;
      draws.step = runs.canonical_step;
      draws.out = rows;
      kernels.draw(draws, stream);
    }
  }
}

void initialize(ParameterSpec& placed, uint64_t seed, Stream& stream) {
  initialize(Shard{.placed = &placed, .value = placed.parameter.value}, seed, stream);
}

void allocate(std::span<ParameterSpec* const> parameters, Runtime& runtime) {
  for (ParameterSpec* placed : parameters) {
    Parameter& p = placed->parameter;
    p.value = Tensor::empty(runtime.arena(MemoryClass::parameters), p.value.shape(),
                            p.value.dtype(), p.name);
  }
}

void for_each_run(
    const ParameterSpec& placed,
    const std::function<void(const Part&, int64_t canonical, int64_t local, int64_t size)>& f) {
  for (const Part& part : placed.placement.parts) {
    for_each_run_of_part(part, placed.parameter.value.shape(),
                         [&](const Run& run) { f(part, run.canonical, run.local, run.size); });
  }
}

}  // namespace megatron::parallel
