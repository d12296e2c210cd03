#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/element_kernels.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/formula_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

template <class Args>
struct Formula;
#define LANES HWY_INLINE
#include "kernels/formulas-inl.h"
#undef LANES

#define MEGATRON_RUN(name, Args) \
  void run_##name(const Args& args, Stream& stream) { run_elements<Formula<Args>>(args, stream); }
MEGATRON_ELEMENT_KERNELS(MEGATRON_RUN)
#undef MEGATRON_RUN

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

#define MEGATRON_DISPATCH(name, Args) \
  HWY_EXPORT(run_##name);             \
  void name(const Args& args, Stream& stream) { HWY_DYNAMIC_DISPATCH(run_##name)(args, stream); }
MEGATRON_ELEMENT_KERNELS(MEGATRON_DISPATCH)
#undef MEGATRON_DISPATCH

}  // namespace megatron::kernels::cpu
#endif
