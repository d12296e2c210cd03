#include <algorithm>

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
    const std::vector<int64_t> samples = load_integers(args.mask.sample_ids);
    const int64_t count = std::max<int64_t>(1, static_cast<int64_t>(samples.size()));
    const int64_t length = args.mask.length > 0 ? args.mask.length : rows / count;
    const C scale = 1 / (1 - static_cast<C>(args.mask.p));
    const Keep keep(args.mask, args.mask.stream);
    for_rows(stream, rows, 64, [&](int64_t row) {
      const int64_t of_all = args.mask.first_row + row;
      for (int64_t i = 0; i < channels; ++i) {
        const bool kept = keep(samples[of_all / length], of_all % length, i);
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
