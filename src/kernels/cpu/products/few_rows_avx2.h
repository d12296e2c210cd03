// The products of kernels/cpu/products/few_rows.h with f32 words on AVX2 with FMA; b is f32, or
// bf16 that is widened in registers.
#pragma once

#include "kernels/cpu/products/few_rows.h"

namespace megatron::kernels::cpu {

void few_rows_product_nt_avx2(const FewRowsProduct& product);
void few_rows_product_nn_avx2(const FewRowsProduct& product);

}  // namespace megatron::kernels::cpu
