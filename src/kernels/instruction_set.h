// Which of the processor's instructions the kernels of the cpu device may use.
#pragma once

namespace megatron::kernels {

enum class InstructionSet {
  newest,  // all that the processor has
  avx2,    // AVX2 and FMA, none newer: bits and speed of a processor without AVX-512 and AMX
};

// Of this process, from now on; not while kernels run. Throws Error where the processor has no AVX2.
void limit_instruction_set(InstructionSet set);
InstructionSet instruction_set_limit();

}  // namespace megatron::kernels
