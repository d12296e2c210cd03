// Requirements of a collective on one rank's tensors, for every transport.
#pragma once

#include <cstdint>
#include <span>

#include "comm/group.h"

namespace megatron::comm {

// Each throws InternalError, because a violation is a defect of the caller.
void check_all_gather(const Tensor& in, const Tensor& out, int size);
void check_reduce_scatter(const Tensor& in, const Tensor& out, int size);
void check_all_to_all(const Tensor& in, const Tensor& out, std::span<const int64_t> send_counts,
                      std::span<const int64_t> receive_counts, int size);

// Bytes of one row: the product of the sizes after the first, even if there are no rows.
int64_t row_bytes(const Tensor& tensor);

// Host memory of a tensor; null on meta.
std::byte* host_data(const Tensor& tensor);

}  // namespace megatron::comm
