#include "kernels/instruction_set.h"

#include "base/error.h"
#include "kernels/cpu/simd_targets.h"
// must follow the targets
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace megatron::kernels {
namespace {

InstructionSet limit = InstructionSet::newest;

}  // namespace

void require_instructions() {
#if defined(__x86_64__)
  MG_CHECK(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("bmi2"),
           "this processor has no AVX2 and FMA, which the kernels for CPUs need; x86-64 processors "
           "have them since 2013 to 2015, but a virtual machine may hide them: choose a newer "
           "processor, or a CPU model of the virtual machine that shows them");
#endif
}

void limit_instruction_set(InstructionSet set) {
  if ((set == InstructionSet::avx2) == (limit == InstructionSet::avx2)) {
    limit = set;
    return;
  }
#if defined(__x86_64__)
  hwy::DisableTargets(0);
  // Lower bits are newer targets.
  if (set == InstructionSet::avx2) hwy::DisableTargets(HWY_AVX2 - 1);
  // Makes kernels choose again. Highway 1.0's SupportedTargets() chooses among all targets itself,
  // so it must not be called after this.
  hwy::GetChosenTarget().DeInit();
#else
  fail("--instruction-set is avx2, which this processor does not have; drop the flag");
#endif
  limit = set;
}

InstructionSet instruction_set_limit() { return limit; }

}  // namespace megatron::kernels
