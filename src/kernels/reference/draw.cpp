#include "base/philox.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {

void draw(const DrawArgs& args, Stream&) {
  const RandomStream stream(args.seed, args.stream);
  const bool wide = args.out.dtype() == DType::f64;
  std::vector<double> values;
  for (int64_t row = 0; row < args.out.size(0); ++row) {
    for (int64_t column = 0; column < args.out.size(1); ++column) {
      const auto index = static_cast<uint64_t>(args.first + row * args.step + column);
      const double drawn = args.kind == DrawArgs::Kind::normal ? stream.normal(index)
                                                               : 2 * stream.uniform(index) - 1;
      values.push_back(wide ? args.scale * drawn : static_cast<float>(args.scale * drawn));
    }
  }
  store(args.out, values);
}

}  // namespace megatron::kernels::reference
