// The products of kernels/cpu/products/few_rows.h of words f32 on AVX2 with FMA, of a b of f32 or
// of bf16, which is widened in registers.
#pragma once

#include "kernels/cpu/products/few_rows.h"

namespace megatron::kernels::cpu {

void few_rows_product_nt_avx2(const FewRowsProduct& product);
void few_rows_product_nn_avx2(const FewRowsProduct& product);

}  // namespace megatron::kernels::cpu
