#include "base/error.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void rotate(const RopeArgs& args, Stream& stream) {
  std::vector<C> x = load<C>(args.x);
  const std::vector<C> cosines = load<C>(args.cos), sines = load<C>(args.sin);
  const std::vector<int64_t> positions = load_integers(args.positions);
  const int64_t heads = args.x.size(1), width = args.x.size(2), half = args.cos.size(1);
  for (const int64_t position : positions) MG_ASSERT(position >= 0 && position < args.cos.size(0));
  for_rows(stream, args.x.size(0) * heads, 64, [&](int64_t row) {
    C* head = x.data() + row * width;
    const C* c = cosines.data() + positions[row / heads] * half;
    const C* s = sines.data() + positions[row / heads] * half;
    for (int64_t i = 0; i < half; ++i) {
      C& first = head[args.interleaved ? 2 * i : i];
      C& second = head[args.interleaved ? 2 * i + 1 : i + half];
      const C sine = args.inverse ? -s[i] : s[i];
      const C rotated = first * c[i] - second * sine;
      second = second * c[i] + first * sine;
      first = rotated;
    }
  });
  store(args.out, x);
}

}  // namespace

void rope(const RopeArgs& args, Stream& stream) {
  args.x.dtype() == DType::f64 ? rotate<double>(args, stream) : rotate<float>(args, stream);
}

}  // namespace megatron::kernels::reference
