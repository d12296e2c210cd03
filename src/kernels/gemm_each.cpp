#include "kernels/gemm_each.h"

#include <algorithm>

#include "kernels/cpu/products/gemm_each.h"

namespace megatron::kernels {

void gemm_each(std::span<const GemmArgs> calls, const Table& table, Stream& stream) {
  constexpr int64_t kFewRows = 64;  // large products take all threads by themselves
  // An observer sees every call, and f16 is widened call by call.
  const bool at_once =
      stream.device().kind == DeviceKind::cpu && &table == &kernels::table(DeviceKind::cpu) &&
      stream.watcher() == nullptr && calls.size() > 1 &&
      std::ranges::none_of(calls, [](const GemmArgs& call) {
        return call.out.size(-2) > kFewRows || has_epilogue(call) || call.a.dtype() == DType::f16;
      });
  if (at_once) {
    for (const GemmArgs& call : calls) check(call);
    return cpu::gemm_each(calls, stream);
  }
  for (const GemmArgs& call : calls) table.gemm(call, stream);
}

}  // namespace megatron::kernels
