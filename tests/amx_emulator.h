// AMX on processors without it, so that its kernels are tested wherever there is AVX-512.
#pragma once

#include <utility>
#include <vector>

#include "kernels/cpu/products/bf16_products.h"
#include "kernels/instruction_set.h"

namespace megatron::kernels::cpu {

// Every way to multiply bf16 that can run here. Where the processor has no AMX, the first call
// makes this process emulate its instructions: each one traps, and a handler of SIGILL does what
// the manual says. A use that the processor would refuse (a tile that is not configured, shapes
// that do not fit) ends the process with a line that says which.
const std::vector<Bf16Products>& bf16_ways();

// f32, and bf16 in each of its ways.
std::vector<std::pair<DType, Bf16Products>> types_and_ways();

// Sets bf16_products() for the lifetime of the object.
class UseBf16Products {
 public:
  explicit UseBf16Products(Bf16Products products) {
    limit_instruction_set(products == Bf16Products::amx     ? InstructionSet::amx
                          : products == Bf16Products::pairs ? InstructionSet::avx512_bf16
                                                            : InstructionSet::avx512);
  }
  UseBf16Products(const UseBf16Products&) = delete;
  ~UseBf16Products() { limit_instruction_set(InstructionSet::newest); }
};

// True if these products are emulated, which takes microseconds per instruction.
bool slow(Bf16Products products);

const char* str(Bf16Products products);

}  // namespace megatron::kernels::cpu
