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
           "this processor lacks AVX2, FMA or BMI2, which the kernels for CPUs need; use another "
           "one, or if a virtual machine hides them, give it a CPU model that has them");
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
