#include "kernels/cuda/tensor_rows.h"
#include "kernels/cuda/together.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

template <class To>
struct Copy {
  static constexpr int kCount = kNeighbours<float, To>, kUnroll = 4;
  using Factors = NoFactors;
  struct Values {
    float x[kCount];
  };
  struct Tensors {
    const float* x;
    To* out;

    explicit Tensors(const CopyArgs& args)
        : x(static_cast<const float*>(args.x.address())),
          out(static_cast<To*>(args.out.address())) {}
    bool is_aligned() const { return aligned<kCount>(x) && aligned<kCount>(out); }
  };
  Tensors at;

  __device__ void prepare(Factors&) const {}
  __device__ void complete(Factors&) const {}
  __device__ void read(const Span& span, Values& v) const { cuda::read(at.x, span, v.x); }
  __device__ void write(const Span& span, const Factors&, Values& v) const {
    cuda::write(at.out, span, v.x);
  }
};

template <class To>
std::unique_ptr<Together> copies(std::span<const CopyArgs> calls, const Tensor& table) {
  RowList<ElementRow<Copy<To>>> rows;
  for (const CopyArgs& call : calls) {
    check(call);
    rows.add({typename Copy<To>::Tensors(call), call.x.elements()},
             units_of<Copy<To>>(call.x.elements()));
  }
  const Copy<To> common{typename Copy<To>::Tensors(calls[0])};
  return std::make_unique<ElementsTogether<Copy<To>>>("copy", common, rows, table);
}

}  // namespace

std::unique_ptr<Together> copy_together(std::span<const CopyArgs> calls, const Tensor& table) {
  std::unique_ptr<Together> made;
  for_storage_type("copy", calls[0].out.dtype(),
                   [&](auto to) { made = copies<decltype(to)>(calls, table); });
  return made;
}

}  // namespace megatron::kernels::cuda
