#include "parallel/placement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/divide.h"
#include "base/error.h"
#include "base/philox.h"
#include "kernels/table.h"

namespace megatron::parallel {

Shape CanonicalTensor::stored_shape() const {
  std::vector<int64_t> sizes;
  for (int d = stacked ? 1 : 0; d < global.rank(); ++d) sizes.push_back(global[d]);
  if (transposed) {
    MG_ASSERT(sizes.size() >= 2);
    std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
  }
  if (joined == Joined::rows) sizes = {sizes.at(0) * sizes.at(1), sizes.at(2)};
  if (joined == Joined::columns) sizes = {sizes.at(1), sizes.at(2) * sizes.at(0)};
  return Shape(std::span<const int64_t>(sizes));
}

std::vector<int64_t> CanonicalTensor::stored_strides() const {
  std::vector<int64_t> order(static_cast<size_t>(global.rank()));  // dims as on disk, slowest first
  std::iota(order.begin(), order.end(), 0);
  if (transposed) {
    MG_ASSERT(order.size() >= 2);
    std::swap(order[order.size() - 1], order[order.size() - 2]);
  }
  if (joined == Joined::columns) std::rotate(order.begin(), order.begin() + 1, order.end());
  std::vector<int64_t> strides(order.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[static_cast<size_t>(order[i])] = stride;
    stride *= global[static_cast<int>(order[i])];
  }
  return strides;
}

std::vector<Slice> CanonicalTensor::slices(int axis) const {
  const auto found = std::ranges::find(held, axis, &AxisSlices::axis);
  return found == held.end() ? std::vector<Slice>{{0, 0, global[axis]}} : found->slices;
}

namespace {

struct Run {
  int64_t canonical = 0, local = 0, size = 0;
};

// Slices of one dim that this rank holds, in the tensor's order.
std::vector<Slice> ordered_slices(const CanonicalTensor& part, const Shape& local_shape, int dim) {
  std::vector<Slice> slices = part.slices(dim);
  std::ranges::sort(slices, {}, &Slice::global_begin);
  for (const Slice& s : slices) {
    MG_ASSERT(s.size >= 0 && s.global_begin >= 0 && s.global_begin + s.size <= part.global[dim]);
    MG_ASSERT(s.local_begin >= 0 && s.local_begin + s.size <= local_shape[dim]);
  }
  return slices;
}

// Calls f for each maximal run of one part.
template <class F>
void for_each_run_of_part(const CanonicalTensor& part, const Shape& local_shape, F&& f) {
  const int rank = part.global.rank();
  MG_ASSERT(rank == local_shape.rank());
  // Dims after `last` are the same in both, so they and a slice of `last` form one run.
  int last = rank - 1;
  const auto is_same = [&](int dim) {
    return std::ranges::find(part.held, dim, &AxisSlices::axis) == part.held.end();
  };
  int64_t inner = 1;
  for (; last > 0 && is_same(last); --last) inner *= local_shape[last];
  for (int dim = 0; dim < rank; ++dim)
    MG_ASSERT(!is_same(dim) || part.global[dim] == local_shape[dim]);

  Run pending;
  const auto add = [&](const Run& run) {
    if (run.size == 0) return;
    if (run.canonical == pending.canonical + pending.size &&
        run.local == pending.local + pending.size) {
      pending.size += run.size;
      return;
    }
    if (pending.size > 0) f(pending);
    pending = run;
  };
  std::vector<std::vector<Slice>> slices;
  for (int dim = 0; dim <= last; ++dim) slices.push_back(ordered_slices(part, local_shape, dim));
  const auto descend = [&](auto&& self, int dim, int64_t canonical, int64_t local) -> void {
    if (rank == 0) return add({0, 0, 1});
    for (const Slice& s : slices[static_cast<size_t>(dim)]) {
      const int64_t global_row = canonical * part.global[dim] + s.global_begin,
                    local_row = local * local_shape[dim] + s.local_begin;
      if (dim == last) {
        add({global_row * inner, local_row * inner, s.size * inner});
        continue;
      }
      for (int64_t i = 0; i < s.size; ++i) self(self, dim + 1, global_row + i, local_row + i);
    }
  };
  descend(descend, 0, 0, 0);
  if (pending.size > 0) f(pending);
}

// Fan-in plus fan-out of the matrix that contains `part`'s rows; each matrix of a stack counts by
// itself.
double xavier_width(const Placement& placement, const CanonicalTensor& part) {
  const auto columns_of = [](const CanonicalTensor& p) {
    const int64_t rows = p.stacked ? p.global[1] : p.global[0];
    return p.global.elements() / std::max<int64_t>(rows, 1);
  };
  int64_t rows = part.stacked ? part.global[1] : 0;
  if (!part.stacked)
    for (const CanonicalTensor& other : placement.tensors) rows += other.global[0];
  return std::sqrt(6.0 / static_cast<double>(rows + columns_of(part)));
}

// `count` runs of one size with equal distances in the canonical tensor and in the parameter,
// respectively.
struct Runs {
  Run first;
  int64_t count = 1, canonical_step = 0, local_step = 0;

  // If `run` continues them, counts it and returns true.
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

// The runs of a part within elements [begin, begin + size) of the parameter, with local indices
// counted from begin.
std::vector<Runs> runs_of(const CanonicalTensor& part, const Shape& local_shape, int64_t begin,
                          int64_t size) {
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

// View of the elements of `values` [n] that the runs fill, one run per row.
Tensor rows_of(const Tensor& values, const Runs& runs) {
  const int64_t extent = (runs.count - 1) * runs.local_step + runs.first.size;
  const std::array<int64_t, 2> strides = {runs.local_step, 1};
  return values.slice(0, runs.first.local, extent)
      .as_strided({runs.count, runs.first.size}, strides);
}

// Intersection of the rows of a part and the held rows, as rows of the part's tensor and of the
// held elements.
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

}  // namespace

Slice share_of(int64_t total, int ranks, int rank) {
  MG_ASSERT(ranks > 0 && rank >= 0 && rank < ranks);
  const int64_t share = ceil_div(total, ranks), begin = std::min(total, rank * share);
  return {.global_begin = begin, .size = std::min(share, total - begin)};
}

std::vector<Slice> Division::slices(int of_rank) const {
  std::vector<Slice> slices;
  int64_t block_begin = 0, local_begin = 0;
  for (const int64_t block : blocks) {
    const Slice share = share_of(block, ranks, of_rank);
    slices.push_back({block_begin + share.global_begin, local_begin, share.size});
    block_begin += block;
    local_begin += share.size;
  }
  return slices;
}

int64_t Division::length(int of_rank) const {
  int64_t length = 0;
  for (const int64_t block : blocks) length += share_of(block, ranks, of_rank).size;
  return length;
}

bool ParameterSpec::is_expert() const {
  return std::ranges::find(divisions, RankGroup::expert, &Division::group) != divisions.end();
}

bool ParameterSpec::is_divided() const {
  return std::ranges::any_of(divisions, [](const Division& d) { return d.ranks > 1; });
}

int64_t ParameterSpec::first_element() const {
  if (parameter.value.elements() == 0) return -1;
  int64_t first = 0;
  for (const Division& division : divisions) {
    int64_t stride = 1;
    for (int d = division.axis + 1; d < whole.rank(); ++d) stride *= whole[d];
    const std::vector<Slice> slices = division.slices();
    const auto slice = std::ranges::find_if(slices, [](const Slice& s) { return s.size > 0; });
    first += slice->global_begin * stride;
  }
  return first;
}

Placement narrowed(const Placement& whole, int axis, std::span<const Slice> slices) {
  Placement placement = whole;
  for (CanonicalTensor& part : placement.tensors) {
    const std::vector<Slice> held = common(part.slices(axis), slices);
    const auto found = std::ranges::find(part.held, axis, &AxisSlices::axis);
    if (found != part.held.end()) {
      found->slices = held;
    } else {
      part.held.push_back({axis, held});
    }
  }
  return placement;
}

namespace {

// Element `index` of a parameter with a transformed distribution; in fp64 on the host, since such
// parameters have an element for each head.
double transformed(const Init& init, const RandomStream& random, uint64_t index) {
  const double u = random.uniform(index);
  if (init.kind == Init::Kind::log_of_uniform)
    return std::log(init.low + (init.high - init.low) * u);
  const double from = std::log(init.low), to = std::log(init.high);
  const double s = std::max(std::exp(from + (to - from) * u), init.floor);
  return s + std::log(-std::expm1(-s));
}

void fill_transformed(const Init& init, const RandomStream& random, const Runs& runs,
                      const Tensor& rows, Stream& stream) {
  std::vector<double> values(static_cast<size_t>(runs.first.size));
  for (int64_t row = 0; row < runs.count; ++row) {
    const int64_t first = runs.first.canonical + row * runs.canonical_step;
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = transformed(init, random, static_cast<uint64_t>(first) + i);
    Tensor out = rows.slice(0, row, 1);
    copy_from(out, std::span<const double>(values), stream);
  }
}

}  // namespace

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
  const bool xavier = placed.init.kind == Init::Kind::xavier_uniform,
             uniform = xavier || placed.init.kind == Init::Kind::uniform,
             is_transformed = placed.init.kind == Init::Kind::log_of_uniform ||
                              placed.init.kind == Init::Kind::inverse_softplus;
  kernels::DrawArgs draws{
      .kind = uniform ? kernels::DrawArgs::Kind::uniform : kernels::DrawArgs::Kind::normal,
      .scale = placed.init.scale,
      .seed = seed};
  for (const CanonicalTensor& part : placed.placement.tensors) {
    draws.stream = hash_name(part.name);
    if (xavier) draws.scale = xavier_width(placed.placement, part);
    for (const Runs& runs :
         runs_of(part, placed.parameter.value.shape(), shard.begin, shard.size())) {
      const Tensor rows = rows_of(values, runs);
      if (placed.init.kind == Init::Kind::ones) {
        for (int64_t row = 0; row < runs.count; ++row)
          kernels.fill({.out = rows.slice(0, row, 1), .value = 1}, stream);
        continue;
      }
      if (is_transformed) {
        fill_transformed(placed.init, RandomStream(seed, part.name), runs, rows, stream);
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

void for_each_run(const ParameterSpec& placed,
                  const std::function<void(const CanonicalTensor&, int64_t canonical, int64_t local,
                                           int64_t size)>& f) {
  for (const CanonicalTensor& part : placed.placement.tensors) {
    for_each_run_of_part(part, placed.parameter.value.shape(),
                         [&](const Run& run) { f(part, run.canonical, run.local, run.size); });
  }
}

}  // namespace megatron::parallel
