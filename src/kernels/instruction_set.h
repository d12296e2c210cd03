// The processor's instructions that the cpu device's kernels may use.
#pragma once

namespace megatron::kernels {

enum class InstructionSet {
  newest,  // everything the processor has
  // Multiplies bf16 as on a processor with AMX, with AVX512_BF16 but no AMX, and with neither
  // (kernels/cpu/products/bf16_products.h). The first two need a processor, or an emulator, that
  // has them.
  amx,
  avx512_bf16,
  avx512,
  avx2,  // AVX2 and FMA, nothing newer: bits and speed of a processor without AVX-512 and AMX
};

// Throws Error if this processor lacks instructions that every kernel of the cpu device uses: AVX2,
// FMA and BMI2 on x86-64.
void require_instructions();

// Limits this process's kernels from now on; must not be called while kernels run. Throws Error for
// avx2 on processors other than x86-64.
void limit_instruction_set(InstructionSet set);
InstructionSet instruction_set_limit();

}  // namespace megatron::kernels
