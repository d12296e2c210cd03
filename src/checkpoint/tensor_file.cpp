#include "checkpoint/tensor_file.h"

#include <algorithm>

#include "base/lfs_pointer.h"

namespace megatron::checkpoint {

std::string_view type_name(const TensorInfo& info) {
  return info.foreign_type.empty() ? name(info.dtype) : info.foreign_type;
}

std::optional<int64_t> byte_count(const Shape& shape, int64_t bits) {
  int64_t total = bits;
  bool empty = false;
  for (int d = 0; d < shape.rank(); ++d) {
    empty = empty || shape[d] == 0;
    if (__builtin_mul_overflow(total, std::max<int64_t>(shape[d], 1), &total)) return std::nullopt;
  }
  if (empty) return 0;
  return total % 8 == 0 ? std::optional(total / 8) : std::nullopt;
}

TensorFile::TensorFile(const std::string& path) : file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  refuse_lfs_pointer({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

const TensorInfo* TensorFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void TensorFile::index_names() {
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

}  // namespace megatron::checkpoint
