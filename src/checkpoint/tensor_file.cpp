#include "checkpoint/tensor_file.h"

#include <algorithm>

namespace megatron::checkpoint {

std::optional<int64_t> byte_count(const Shape& shape, DType type) {
  int64_t bytes = size_of(type);
  bool empty = false;
  for (int d = 0; d < shape.rank(); ++d) {
    empty = empty || shape[d] == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(shape[d], 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

const TensorInfo* TensorFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void TensorFile::index_names() {
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

}  // namespace megatron::checkpoint
