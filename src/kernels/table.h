// The kernel table: one function pointer a kernel of list.h, filled by each back-end; tools/check_coverage refuses a null
// entry.
#pragma once

#include <span>
#include <string_view>

#include "device/stream.h"
#include "kernels/list.h"

namespace megatron::kernels {

struct Table {
#define MEGATRON_ENTRY(name, Args, heat) void (*name)(const Args&, Stream&) = nullptr;
  MEGATRON_KERNELS(MEGATRON_ENTRY)
#undef MEGATRON_ENTRY
};

// Throws Error for a back-end that this build does not have.
const Table& table(DeviceKind kind);
// What a user should know of matrix products in this type here; empty when there is nothing to say.
std::string_view remark_on_products(DeviceKind kind, DType type);
// That of the stream's device; where an observer watches the stream, one that calls it (observer.h).
const Table& table(Stream& stream);

// The type that sums and statistics are kept in.
inline DType accumulator(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace megatron::kernels
