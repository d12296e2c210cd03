#include "kernels/cuda/formula_loops.h"
#include "kernels/cuda/kernels.h"

namespace megatron::kernels::cuda {
namespace {

template <class Args>
struct Formula;
#define LANES __device__
#include "kernels/formulas-inl.h"
#undef LANES

template <class Args>
void run_elements(const Args& args, Stream& stream) {
  constexpr auto& elements = Args::kElements;
  const Tensor& first = args.*elements.list[elements.of_type()].tensor;
  for_storage_type(elements.kernel, first.dtype(), [&](auto type) {
    using Body = FormulaBody<FormOf<decltype(type), Args>, Formula<Args>>;
    constexpr bool kRows = elements.layout == ElementLayout::rows;
    Body body{.formula = Formula<Args>(args)};
    for (size_t k = 0; k < Body::kOperands; ++k) {
      const Tensor& t = args.*elements.list[k].tensor;
      body.operands[k] = address_of<void>(t);
      if (kRows) body.strides[k] = t.stride(0);
    }
    if constexpr (kRows) {
      run_over_rows<1>(elements.kernel, first.size(0), first.size(1), body, stream);
    } else {
      run_over_elements(elements.kernel, first.elements(), body.vectors(), body, stream);
    }
  });
}

}  // namespace

#define MEGATRON_RUN(name, Args) \
  void name(const Args& args, Stream& stream) { run_elements(args, stream); }
MEGATRON_ELEMENT_KERNELS(MEGATRON_RUN)
#undef MEGATRON_RUN

}  // namespace megatron::kernels::cuda
