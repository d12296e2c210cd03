#include "kernels/instruction_set.h"

#include "base/error.h"
#include "kernels/cpu/simd_targets.h"
// after the targets
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace megatron::kernels {
namespace {

InstructionSet limit = InstructionSet::newest;

}  // namespace

void limit_instruction_set(InstructionSet set) {
  if ((set == InstructionSet::avx2) == (limit == InstructionSet::avx2)) {
    limit = set;
    return;
  }
#if defined(__x86_64__)
  hwy::DisableTargets(0);
  MG_CHECK((hwy::SupportedTargets() & HWY_AVX2) != 0,
           "--instruction-set is avx2, which this processor does not have; drop the flag");
  // Newer targets are lower bits.
  if (set == InstructionSet::avx2) hwy::DisableTargets(HWY_AVX2 - 1);
  // Kernels choose anew. Highway 1.0's SupportedTargets() makes a choice of its own, of all
  // targets, so that nothing may call it after this.
  hwy::GetChosenTarget().DeInit();
#else
  fail("--instruction-set is avx2, which this processor does not have; drop the flag");
#endif
  limit = set;
}

InstructionSet instruction_set_limit() { return limit; }

}  // namespace megatron::kernels
