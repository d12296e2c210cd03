// Several tensors processed by one launch (kernels/together.h). A tensor's Row holds what a kernel
// needs to know of it. The work is divided into units, numbered from the first tensor to the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/upload_rows.h"
#include "kernels/together.h"

namespace megatron::kernels::cuda {

template <class Row>
struct Unit {
  const Row& row;
  int64_t number;  // within its tensor
};

// A single tensor, passed as an argument of the launch.
template <class Row>
struct OneRow {
  Row row;

  __device__ Unit<Row> find(int64_t unit) const { return {row, unit}; }
};

// Table of rows in device memory.
template <class Row>
struct RowTable {
  const Row* rows;
  const int64_t* ends;  // end of each tensor's units
  int last;

  // Finds the first tensor whose units end after `unit`.
  __device__ Unit<Row> find(int64_t unit) const {
    int low = 0, high = last;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (unit < ends[middle]) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return {rows[low], low == 0 ? unit : unit - ends[low - 1]};
  }
};

// A table under construction on the host.
template <class Row>
class RowList {
 public:
  void add(const Row& row, int64_t units) {
    rows_.push_back(row);
    ends_.push_back(this->units() + units);
  }
  int64_t units() const { return ends_.empty() ? 0 : ends_.back(); }
  RowTable<Row> upload(const Tensor& table) const {
    static_assert(sizeof(Row) <= kTogetherRow && std::is_trivially_copyable_v<Row> &&
                  sizeof(Row) % alignof(int64_t) == 0);
    upload_rows(table, std::as_bytes(std::span(rows_)), ends_);
    const auto* rows = static_cast<const Row*>(table.address());
    return {rows, reinterpret_cast<const int64_t*>(rows + rows_.size()),
            static_cast<int>(rows_.size()) - 1};
  }

 private:
  std::vector<Row> rows_;
  std::vector<int64_t> ends_;
};

// --- Element-wise work. In addition to the members named in elements.h, a Body has
//   Tensors              addresses and values of one tensor; is_aligned(): all allow vectors
//   Tensors at           those of the current tensor
//   complete(Factors&)   adds the values that differ between tensors to what prepare() computed

template <class Body>
struct ElementRow {
  typename Body::Tensors tensors;
  int64_t elements;
  bool vectors;

  ElementRow(const typename Body::Tensors& t, int64_t n)
      : tensors(t), elements(n), vectors(t.is_aligned()) {}
};

template <class Body>
inline constexpr int64_t kElementsOfUnit = int64_t{kThreads} * Body::kCount * Body::kUnroll;
template <class Body>
int64_t units_of(int64_t elements) {
  return ceil_div(elements, kElementsOfUnit<Body>);
}

template <class Body, class Rows>
__global__ void __launch_bounds__(kThreads)
    over_tensors(int64_t units, const Body common, const Rows rows) {
  __shared__ typename Body::Factors shared;
  common.prepare(shared);
  __syncthreads();
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const auto [row, number] = rows.find(unit);
    Body body = common;
    body.at = row.tensors;
    typename Body::Factors factors = shared;
    body.complete(factors);
    typename Body::Values values[Body::kUnroll] = {};
    Span spans[Body::kUnroll] = {};
#pragma unroll
    for (int u = 0; u < Body::kUnroll; ++u) {
      Span& span = spans[u];
      span.first =
          number * kElementsOfUnit<Body> + (int64_t{u} * kThreads + threadIdx.x) * Body::kCount;
      span.count = left<Body::kCount>(row.elements - span.first);
      span.vector = row.vectors && span.count == Body::kCount;
      if (span.count > 0) body.read(span, values[u]);
    }
#pragma unroll
    for (int u = 0; u < Body::kUnroll; ++u)
      if (spans[u].count > 0) body.write(spans[u], factors, values[u]);
  }
}

template <class Body, class Rows>
void run_over_tensors(const char* name, int64_t units, const Body& body, const Rows& rows,
                      Stream& stream) {
  if (units == 0) return;
  const Grid grid{dim3(static_cast<unsigned>(std::min(units, kMaxElementBlocks)))};
  launch(name, over_tensors<Body, Rows>, grid, stream, units, body, rows);
}

// Launches the body for the one tensor in its `at`.
template <class Body>
void run_over_tensor(const char* name, const Body& body, int64_t elements, Stream& stream) {
  const OneRow<ElementRow<Body>> row{{body.at, elements}};
  run_over_tensors(name, units_of<Body>(elements), body, row, stream);
}

// Launches the body for many tensors at once.
template <class Body>
class ElementsTogether final : public Together {
 public:
  // common: its `at` is ignored.
  ElementsTogether(const char* name, const Body& common, const RowList<ElementRow<Body>>& rows,
                   const Tensor& table)
      : name_(name), common_(common), units_(rows.units()), rows_(rows.upload(table)) {}
  void run(Stream& stream) override { run_over_tensors(name_, units_, common_, rows_, stream); }

 private:
  const char* name_;
  Body common_;
  int64_t units_;
  RowTable<ElementRow<Body>> rows_;
};

}  // namespace megatron::kernels::cuda
