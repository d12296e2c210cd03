// Whether a back-end has kernels of its own for what a step spends its time in.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/table.h"

namespace megatron::kernels {

// The hot kernels (kernels/list.h) that the table leaves to composed definitions, in their order.
std::vector<std::string_view> composed_kernels(const Table& table);

// Throws Error naming them, and --allow-composed, where there are any.
void require_own_kernels(const Table& table, DeviceKind kind);

}  // namespace megatron::kernels
