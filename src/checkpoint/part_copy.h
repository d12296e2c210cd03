// Elements on their way between a canonical tensor as it lies on disk and the parameter that holds
// a part of it.
#pragma once

#include <cstddef>
#include <span>

#include "parallel/placement.h"

namespace megatron::checkpoint {

// Whether elements can be converted: equal types, or both floating-point. f64 to 16 bits goes
// through f32.
bool convertible(DType from, DType to);

// `stored` is the whole canonical tensor as on disk (part.stored_shape(), any alignment), of the
// type `dtype`; `value` is contiguous and on the host. Copies the part's slices, converted.
// Placements that do not fit `value` are InternalErrors.
void read_part(const parallel::Part& part, std::span<const std::byte> stored, DType dtype,
               const Tensor& value);
void write_part(const parallel::Part& part, const Tensor& value, std::span<std::byte> stored,
                DType dtype);

// Elements of `value` that the part's slices take.
int64_t elements_of(const parallel::Part& part, const Tensor& value);

}  // namespace megatron::checkpoint
