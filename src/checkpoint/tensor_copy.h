// Elements on their way between a canonical tensor as it lies on disk and the parameter that holds
// a part of it.
#pragma once

#include <cstddef>
#include <span>

#include "checkpoint/held_tensor.h"
#include "checkpoint/mxfp4.h"
#include "checkpoint/tensor_blocks.h"

namespace megatron::checkpoint {

// Whether elements can be converted: equal types, or both floating-point. f64 to 16 bits goes
// through f32.
bool convertible(DType from, DType to);

// Below, `stored` is the whole canonical tensor as on disk (part.stored_shape(), any alignment), of
// the type `dtype`; values are contiguous and on the host.

// Copies what is held of the part, converted, and nothing else of `stored` is touched. Returns how
// many elements that are. Placements that do not fit are InternalErrors.
int64_t read_part(const parallel::CanonicalTensor& part, std::span<const std::byte> stored,
                  DType dtype, const HeldTensor& held);
// The same of experts in MXFP4, whose part is transposed; as little is decoded at a time.
int64_t read_part(const parallel::CanonicalTensor& part, const Mxfp4Tensor& stored,
                  const HeldTensor& held);
// The same of a parameter that is held whole.
void read_part(const parallel::CanonicalTensor& part, std::span<const std::byte> stored,
               DType dtype, const Tensor& value);

// One block of blocks_of(), whose local side is `value`.
void write_block(const Block& block, const Tensor& value, std::span<std::byte> stored, DType dtype);
// Elements [first, first + n) of the block, row after row, one after another in `out`.
void pack_block(const Block& block, const Tensor& value, int64_t first, int64_t n, std::byte* out,
                DType dtype);

}  // namespace megatron::checkpoint
