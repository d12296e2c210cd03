// CUDA launches that cover many calls at once; kernels/together.h has the contract. All calls have
// been checked.
#pragma once

#include "kernels/together.h"

namespace megatron::kernels::cuda {

std::unique_ptr<Together> adam_together(std::span<const AdamArgs> calls, const Tensor& table);
std::unique_ptr<Together> sgd_together(std::span<const SgdArgs> calls, const Tensor& table);
std::unique_ptr<Together> lion_together(std::span<const LionArgs> calls, const Tensor& table);
std::unique_ptr<Together> copy_together(std::span<const CopyArgs> calls, const Tensor& table);
std::unique_ptr<Together> sum_of_squares_together(std::span<const SumOfSquaresArgs> calls,
                                                  const Tensor& table);

}  // namespace megatron::kernels::cuda
