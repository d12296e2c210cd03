#include "kernels/reference/elements.h"
#include "kernels/reference/keep.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void drop(const DropoutArgs& args, Stream& stream) {
  std::vector<C> x = load<C>(args.x);
  const int64_t rows = args.x.size(0), channels = args.x.size(1);
  if (args.mask.p > 0) {
    const HostRowTokens tokens(args.mask.rows, rows);
    const C scale = 1 / (1 - static_cast<C>(args.mask.p));
    const Keep keep(args.mask, args.mask.stream);
    for_rows(stream, rows, 64, [&](int64_t row) {
      for (int64_t i = 0; i < channels; ++i) {
        const bool kept =
            keep(tokens.sample(row), tokens.position(row), args.mask.first_channel + i);
        x[row * channels + i] = kept ? x[row * channels + i] * scale : 0;
      }
    });
  }
  store(args.out, x);
}

}  // namespace

void dropout(const DropoutArgs& args, Stream& stream) {
  args.x.dtype() == DType::f64 ? drop<double>(args, stream) : drop<float>(args, stream);
}

}  // namespace megatron::kernels::reference
