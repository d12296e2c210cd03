// Implementation of bf16 products on the host.
#pragma once

#include <string_view>

#include "base/dtype.h"
#include "kernels/cpu/products/tiles.h"

namespace megatron::kernels::cpu {

// amx: in the tiles of AMX. pairs: by AVX512_BF16, two products at a time. widened: as f32, block
// by block (slower, more exact). Each has an order of sums of its own
// (kernels/cpu/products/tiles.h).
enum class Bf16Products { amx, pairs, widened };

// The first of them that this processor has and the process may use (kernels/instruction_set.h);
// for amx the kernel has to permit the process tiles, which it is asked for here, once.
Bf16Products bf16_products();
// Remark for the user about the bf16 products; empty if there is none.
std::string_view remark_on_bf16_products();

// The words that a product of that type sums over; f16 is not for the kernels of the host.
inline WordKind word_kind(DType type, Bf16Products products) {
  if (type != DType::bf16 || products == Bf16Products::widened) return WordKind::f32;
  return products == Bf16Products::amx ? WordKind::bf16_amx : WordKind::bf16_pair;
}

}  // namespace megatron::kernels::cpu
