// Calls with the C++ type of a tensor's elements.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"

namespace megatron {

// f(T{}), T the type.
template <class F>
void for_floating_type(DType type, F&& f) {
  switch (type) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    default: MG_ASSERT(is_floating(type));
  }
}
template <class F>
void for_integer_type(DType type, F&& f) {
  switch (type) {
    case DType::i64: return f(int64_t{});
    case DType::i32: return f(int32_t{});
    case DType::i16: return f(int16_t{});
    case DType::i8: return f(int8_t{});
    case DType::u16: return f(uint16_t{});
    case DType::u8: return f(uint8_t{});
    default: MG_ASSERT(!is_floating(type));
  }
}

}  // namespace megatron
