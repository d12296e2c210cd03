// Copies elements between a canonical tensor on disk and the parameter that holds a part of it.
#pragma once

#include <cstddef>
#include <span>

#include "checkpoint/held_tensor.h"
#include "checkpoint/packed_tensor.h"
#include "checkpoint/tensor_blocks.h"

namespace megatron::checkpoint {

// True if elements can be converted: the types are equal or both floating-point. f64 is converted
// to 16 bits through f32.
bool convertible(DType from, DType to);

// Below, `stored` is the whole canonical tensor in disk layout (part.stored_shape(), any
// alignment), of type `dtype`; values are contiguous and on the host.

// Copies the held elements of the part, converted, without reading any other byte of `stored` or
// writing any other element. Returns their number. Placements that do not fit are InternalErrors.
int64_t read_part(const parallel::CanonicalTensor& part, std::span<const std::byte> stored,
                  DType dtype, const HeldTensor& held);
// The same for a quantized tensor; only what is needed is decoded.
int64_t read_part(const parallel::CanonicalTensor& part, const PackedTensor& stored,
                  const HeldTensor& held);
// The same for a parameter that is held whole.
void read_part(const parallel::CanonicalTensor& part, std::span<const std::byte> stored,
               DType dtype, const Tensor& value);

// Writes one block of blocks_of(), whose local side is `value`.
void write_block(const Block& block, const Tensor& value, std::span<std::byte> stored, DType dtype);
// Packs elements [first, first + n) of the block, row by row, contiguously into `out`.
void pack_block(const Block& block, const Tensor& value, int64_t first, int64_t n, std::byte* out,
                DType dtype);

}  // namespace megatron::checkpoint
