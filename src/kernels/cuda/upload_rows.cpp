#include "kernels/cuda/upload_rows.h"

#include <cstring>
#include <vector>

#include "base/error.h"

namespace megatron::kernels::cuda {

void upload_rows(const Tensor& table, std::span<const std::byte> rows,
                 std::span<const int64_t> ends) {
  std::vector<std::byte> bytes(static_cast<size_t>(table.bytes()));
  MG_ASSERT(rows.size() + ends.size_bytes() <= bytes.size());
  std::memcpy(bytes.data(), rows.data(), rows.size());
  std::memcpy(bytes.data() + rows.size(), ends.data(), ends.size_bytes());
  copy_bytes_from(table, bytes);
}

}  // namespace megatron::kernels::cuda
