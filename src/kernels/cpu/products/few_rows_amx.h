// The products of kernels/cpu/products/few_rows.h for words bf16_amx. The processor must have
// AVX-512 as well as AMX.
#pragma once

#include "kernels/cpu/products/few_rows.h"

namespace megatron::kernels::cpu {

void few_rows_product_nt_amx(const FewRowsProduct& product);
void few_rows_product_nn_amx(const FewRowsProduct& product);

}  // namespace megatron::kernels::cpu
