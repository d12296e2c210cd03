#include "comm/values.h"

namespace megatron::comm {

void largest(Group& ranks, Stream& stream, std::span<double> values, std::string_view call) {
  if (ranks.size() == 1 || values.empty()) return;
  const Tensor tensor =
      Tensor::empty(stream.scratch(), Shape{static_cast<int64_t>(values.size())}, DType::f64, call);
  copy_bytes_from(tensor, std::as_bytes(values));
  ranks.all_reduce(tensor, Reduce::max, stream, call).wait(stream);
  stream.synchronize();
  copy_bytes_to(tensor, std::as_writable_bytes(values));
}

}  // namespace megatron::comm
