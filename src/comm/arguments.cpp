#include "comm/arguments.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace megatron::comm {

namespace {

void check_counts(std::span<const int64_t> counts, int64_t rows, int size) {
  MG_ASSERT(static_cast<int>(counts.size()) == size);
  MG_ASSERT(std::all_of(counts.begin(), counts.end(), [](int64_t n) { return n >= 0; }));
  MG_ASSERT(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == rows);
}

}  // namespace

void check_call(const GroupCall& c, int size) {
  MG_ASSERT(c.in.defined() && c.in.is_contiguous());
  if (!c.out.defined()) {
    MG_ASSERT(c.operation == Operation::all_reduce || (c.peer >= 0 && c.peer < size));
    return;
  }
  MG_ASSERT(c.out.is_contiguous() && c.in.dtype() == c.out.dtype());
  switch (c.operation) {
    case Operation::all_gather: MG_ASSERT(c.out.elements() == size * c.in.elements()); break;
    case Operation::reduce_scatter: MG_ASSERT(c.in.elements() == size * c.out.elements()); break;
    default:
      MG_ASSERT(c.in.rank() >= 1 && c.out.rank() >= 1 && row_bytes(c.in) == row_bytes(c.out));
      check_counts(c.send_counts, c.in.size(0), size);
      check_counts(c.receive_counts, c.out.size(0), size);
  }
}

int64_t row_bytes(const Tensor& tensor) {
  int64_t bytes = size_of(tensor.dtype());
  for (int d = 1; d < tensor.rank(); ++d) bytes *= tensor.size(d);
  return bytes;
}

std::byte* host_data(const Tensor& tensor) {
  return tensor.device().has_data() ? static_cast<std::byte*>(tensor.raw()) : nullptr;
}

}  // namespace megatron::comm
