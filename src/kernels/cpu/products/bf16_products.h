// Selects how the host multiplies bf16.
#pragma once

#include <string_view>

#include "base/dtype.h"
#include "kernels/cpu/products/tiles.h"

namespace megatron::kernels::cpu {

// amx: in AMX tiles. pairs: with AVX512_BF16, two products at a time. widened: as f32, block by
// block (slower, more exact). Each has its own order of sums (kernels/cpu/products/tiles.h).
enum class Bf16Products { amx, pairs, widened };

// The first of them that the processor has and the process may use (kernels/instruction_set.h). For
// amx the operating system must permit the process to use tiles; the first call requests that.
Bf16Products bf16_products();
// Remark for the user about the bf16 products; empty if there is none.
std::string_view remark_on_bf16_products();

// Kind of the words of a product with operands of that type. The host's kernels do not support f16.
inline WordKind word_kind(DType type, Bf16Products products) {
  if (type != DType::bf16 || products == Bf16Products::widened) return WordKind::f32;
  return products == Bf16Products::amx ? WordKind::bf16_amx : WordKind::bf16_pair;
}

}  // namespace megatron::kernels::cpu
