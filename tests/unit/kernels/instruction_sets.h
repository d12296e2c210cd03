// Runs the host's kernels on each instruction set for which they are compiled.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

namespace megatron::kernels::cpu {

// Calls f(target) once with each Highway target that this processor has.
template <class F>
void for_each_target(F f) {
  const int64_t supported = hwy::SupportedTargets();
  for (const int64_t target : {HWY_AVX3, HWY_AVX2}) {
    if ((supported & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    SCOPED_TRACE(hwy::TargetName(target));
    f(target);
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

}  // namespace megatron::kernels::cpu
