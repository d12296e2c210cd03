// Requirements of a collective on one rank's tensors, for every transport.
#pragma once

#include <cstdint>

#include "comm/group.h"

namespace megatron::comm {

// Throws InternalError, because a violation is a defect of the caller.
void check_call(const GroupCall& call, int size);

// Bytes of one row: the product of the sizes after the first, even if there are no rows.
int64_t row_bytes(const Tensor& tensor);

// Host memory of a tensor; null on meta.
std::byte* host_data(const Tensor& tensor);

}  // namespace megatron::comm
