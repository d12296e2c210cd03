#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {

void put_rows(const PutRowsArgs& args, Stream&) {
  const std::vector<int64_t> rows = load_integers(args.rows);
  const int64_t page = args.out.size(1);
  for (int64_t t = 0; t < args.x.size(0); ++t) {
    const int64_t row = rows[static_cast<size_t>(t)];
    if (row < 0 || row >= args.out.size(0) * page) continue;
    const Tensor from = args.x.slice(0, t, 1),
                 to = args.out.select(0, row / page).slice(0, row % page, 1);
    if (is_floating(from.dtype())) store(to, load<double>(from));
    else store_integers(to, load_integers(from));
  }
}

}  // namespace megatron::kernels::reference
