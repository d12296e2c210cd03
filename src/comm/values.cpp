#include "comm/values.h"

#include <cstring>

namespace megatron::comm {

void largest(Group& ranks, Stream& stream, std::span<double> values, std::string_view call) {
  if (ranks.size() == 1 || values.empty()) return;
  const Tensor tensor =
      Tensor::empty(stream.scratch(), Shape{static_cast<int64_t>(values.size())}, DType::f64, call);
  std::memcpy(tensor.raw(), values.data(), values.size_bytes());
  ranks.all_reduce(tensor, Reduce::max, stream, call).wait(stream);
  stream.synchronize();
  std::memcpy(values.data(), tensor.raw(), values.size_bytes());
}

}  // namespace megatron::comm
