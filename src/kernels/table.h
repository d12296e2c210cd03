// The kernel table: one function pointer a kernel of list.h, filled by each back-end; tools/check_coverage refuses a null
// entry.
#pragma once

#include <span>
#include <string_view>

#include "device/stream.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/clip.h"
#include "kernels/cross_entropy.h"
#include "kernels/draw.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/expert_balance.h"
#include "kernels/expert_rows.h"
#include "kernels/gate.h"
#include "kernels/gemm.h"
#include "kernels/grouped_gemm.h"
#include "kernels/head_norm.h"
#include "kernels/list.h"
#include "kernels/noise.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/put_rows.h"
#include "kernels/rope.h"
#include "kernels/route.h"
#include "kernels/router_loss.h"
#include "kernels/sample.h"
#include "kernels/scale.h"
#include "kernels/soft_cap.h"
#include "kernels/squared_error.h"

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
