// What a collective asks of its tensors on one rank, whatever carries it.
#pragma once

#include <cstdint>
#include <span>

#include "comm/group.h"

namespace megatron::comm {

// Each throws InternalError: a caller that breaks these is defective.
void check_all_gather(const Tensor& in, const Tensor& out, int size);
void check_reduce_scatter(const Tensor& in, const Tensor& out, int size);
void check_all_to_all(const Tensor& in, const Tensor& out, std::span<const int64_t> send_counts,
                      std::span<const int64_t> receive_counts, int size);

// Bytes of one row: the product of the sizes after the first, also when there are no rows.
int64_t row_bytes(const Tensor& tensor);

// Host memory of a tensor; null on meta.
std::byte* host_data(const Tensor& tensor);

}  // namespace megatron::comm
