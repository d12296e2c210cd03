#include "optim/gathered_matrix.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/table.h"

namespace megatron::optim {
namespace {

// Shape of the slice that a rank holds.
Shape shape_of(const parallel::ParameterSpec& placed, int rank) {
  const parallel::Division& division = placed.divisions.at(0);
  Shape shape = placed.whole;
  shape.set(division.axis, division.length(rank));
  return shape;
}

Tensor front(const Tensor& buffer, const Shape& shape) {
  return buffer.slice(0, 0, shape.elements()).view(shape);
}

}  // namespace

GatheredMatrix::GatheredMatrix(std::span<const parallel::ParameterSpec* const> parameters,
                               comm::Group* ranks, DType type, Runtime& runtime)
    : ranks_(ranks) {
  int64_t slice = 0, whole = 0;
  for (const parallel::ParameterSpec* placed : parameters) {
    if (!is_divided(*placed)) continue;
    slice = std::max(slice, largest_slice(*placed));
    whole = std::max(whole, placed->whole.elements());
  }
  if (whole == 0) return;
  const auto buffer = [&](int64_t elements, std::string_view label) {
    return Tensor::empty(runtime.arena(MemoryClass::optimizer), {elements}, type, label);
  };
  own_ = buffer(slice, "muon.slice");
  all_ = buffer(slice * ranks->size(), "muon.slices");
  whole_ = buffer(whole, "muon.whole");
  kernels::table(runtime.stream()).fill({.out = own_, .value = 0}, runtime.stream());
}

bool GatheredMatrix::is_divided(const parallel::ParameterSpec& placed) const {
  if (!placed.is_divided()) return false;
  MG_ASSERT(ranks_ != nullptr && placed.divisions.size() == 1 &&
            placed.divisions[0].group == parallel::RankGroup::tensor &&
            placed.divisions[0].ranks == ranks_->size());
  return true;
}

const Shape& GatheredMatrix::shape(const parallel::ParameterSpec& placed) const {
  return is_divided(placed) ? placed.whole : placed.parameter.value.shape();
}

int64_t GatheredMatrix::largest_slice(const parallel::ParameterSpec& placed) const {
  int64_t largest = 0;
  for (int r = 0; r < ranks_->size(); ++r)
    largest = std::max(largest, shape_of(placed, r).elements());
  return largest;
}

Tensor GatheredMatrix::slice(const parallel::ParameterSpec& placed) const {
  return front(own_, placed.parameter.value.shape());
}

Tensor GatheredMatrix::whole(const parallel::ParameterSpec& placed) const {
  return front(whole_, placed.whole);
}

void GatheredMatrix::copy(const parallel::ParameterSpec& placed, const Tensor& slice, int rank,
                          To to, Stream& stream) const {
  const Tensor all = whole(placed);
  const parallel::Division& division = placed.divisions[0];
  const int axis = division.axis;
  for (const parallel::Slice& s : division.slices(rank)) {
    if (s.size == 0) continue;
    const Tensor there = all.slice(axis, s.global_begin, s.size);
    const Tensor here = slice.slice(axis, s.local_begin, s.size);
    kernels::table(stream).copy(
        {.x = to == To::whole ? here : there, .out = to == To::whole ? there : here}, stream);
  }
}

void GatheredMatrix::gather(const parallel::ParameterSpec& placed, Stream& stream) const {
  const int64_t n = largest_slice(placed);
  const int ranks = ranks_->size();
  ranks_->all_gather(own_.slice(0, 0, n), all_.slice(0, 0, n * ranks), stream, "muon.direction")
      .wait(stream);
  for (int r = 0; r < ranks; ++r) {
    const Shape shape = shape_of(placed, r);
    copy(placed, all_.slice(0, r * n, shape.elements()).view(shape), r, To::whole, stream);
  }
}

void GatheredMatrix::take(const parallel::ParameterSpec& placed, Stream& stream) const {
  copy(placed, slice(placed), ranks_->rank(), To::slice, stream);
}

void GatheredMatrix::for_each_row(const parallel::ParameterSpec& placed, int64_t begin,
                                  int64_t size,
                                  const std::function<void(int64_t, int64_t)>& f) const {
  if (placed.divisions[0].axis != 0) return f(begin, size);
  for (const parallel::Slice& s : placed.divisions[0].slices()) {
    const int64_t first = std::max(begin, s.global_begin);
    const int64_t end = std::min(begin + size, s.global_begin + s.size);
    if (first < end) f(s.local_begin + first - s.global_begin, end - first);
  }
}

}  // namespace megatron::optim
