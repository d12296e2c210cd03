// The kernel table: one function pointer per kernel of list.h, filled by each back-end;
// tools/check_coverage refuses null entries.
#pragma once

#include <span>
#include <string_view>

#include "device/stream.h"
#include "kernels/list.h"

namespace megatron::kernels {

struct Table {
#define MEGATRON_ENTRY(name, Args) void (*name)(const Args&, Stream&) = nullptr;
  MEGATRON_KERNELS(MEGATRON_ENTRY)
#undef MEGATRON_ENTRY
};

// Throws Error for a back-end that this build does not have.
const Table& table(DeviceKind kind);
// Remark for the user about matrix products in this type on this machine; empty if there is none.
std::string_view remark_on_products(DeviceKind kind, DType type);
// Table of the stream's device; if an observer watches the stream, one that calls it (observer.h).
const Table& table(Stream& stream);

// Type in which sums and statistics are kept.
inline DType accumulator(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace megatron::kernels
