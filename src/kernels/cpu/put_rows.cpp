#include <cstring>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"

namespace megatron::kernels::cpu {

void put_rows(const PutRowsArgs& args, Stream& stream) {
  constexpr int64_t kBlockBytes = 64 << 10;
  const Tensor &x = args.x, &out = args.out;
  if (x.elements() == 0) return;
  const int64_t size = size_of(x.dtype()), heads = x.size(1), bytes = x.size(2) * size;
  const auto* from = static_cast<const std::byte*>(x.raw());
  auto* to = static_cast<std::byte*>(out.raw());
  const int32_t* rows = args.rows.data<int32_t>();
  const int64_t page = out.size(1), count = out.size(0) * page;
  for_blocks(stream, x.size(0), std::max<int64_t>(1, kBlockBytes / (heads * bytes)),
             [&](int64_t begin, int64_t end) {
               for (int64_t t = begin; t < end; ++t) {
                 const int64_t row = rows[t];
                 if (row < 0 || row >= count) continue;
                 const int64_t place = row / page * out.stride(0) + row % page * out.stride(1);
                 for (int64_t h = 0; h < heads; ++h)
                   std::memcpy(to + (place + h * out.stride(2)) * size,
                               from + (t * x.stride(0) + h * x.stride(1)) * size,
                               static_cast<size_t>(bytes));
               }
             });
}

}  // namespace megatron::kernels::cpu
