// Which of the processor's instructions the kernels of the cpu device may use.
#pragma once

namespace megatron::kernels {

enum class InstructionSet {
  newest,  // all that the processor has
  // bf16 is multiplied as on a processor with AMX, with AVX512_BF16 and no AMX, and with neither
  // (kernels/cpu/products/bf16_products.h). The first two are for processors that have them, or
  // processes that emulate them.
  amx,
  avx512_bf16,
  avx512,
  avx2,  // AVX2 and FMA, none newer: bits and speed of a processor without AVX-512 and AMX
};

// Of this process, from now on; not while kernels run. Throws Error where the processor has no AVX2.
void limit_instruction_set(InstructionSet set);
InstructionSet instruction_set_limit();

}  // namespace megatron::kernels
