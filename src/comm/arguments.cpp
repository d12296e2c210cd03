#include "comm/arguments.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace megatron::comm {

namespace {

void check_pair(const Tensor& in, const Tensor& out) {
  MG_ASSERT(in.defined() && out.defined() && in.is_contiguous() && out.is_contiguous());
  MG_ASSERT(in.dtype() == out.dtype());
}

}  // namespace

void check_all_gather(const Tensor& in, const Tensor& out, int size) {
  check_pair(in, out);
  MG_ASSERT(out.elements() == size * in.elements());
}

void check_reduce_scatter(const Tensor& in, const Tensor& out, int size) {
  check_pair(in, out);
  MG_ASSERT(in.elements() == size * out.elements());
}

void check_all_to_all(const Tensor& in, const Tensor& out, std::span<const int64_t> send_counts,
                      std::span<const int64_t> receive_counts, int size) {
  check_pair(in, out);
  MG_ASSERT(in.rank() >= 1 && out.rank() >= 1 && row_bytes(in) == row_bytes(out));
  for (const auto counts : {send_counts, receive_counts}) {
    MG_ASSERT(static_cast<int>(counts.size()) == size);
    MG_ASSERT(std::all_of(counts.begin(), counts.end(), [](int64_t n) { return n >= 0; }));
  }
  MG_ASSERT(std::accumulate(send_counts.begin(), send_counts.end(), int64_t{0}) == in.size(0));
  MG_ASSERT(std::accumulate(receive_counts.begin(), receive_counts.end(), int64_t{0}) ==
            out.size(0));
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
