#include "kernels/cpu/put_rows.h"

#include <cstring>

#include "kernels/cpu/blocks.h"

namespace megatron::kernels::cpu {

void put_rows(const PutRowsArgs& args, Stream& stream) {
  check(args);
  constexpr int64_t kBlockBytes = 64 << 10;
  const int64_t size = size_of(args.x.dtype()), bytes = args.x.size(1) * size;
  if (bytes == 0) return;
  const auto* from = static_cast<const std::byte*>(args.x.raw());
  auto* to = static_cast<std::byte*>(args.out.raw());
  const int32_t* rows = args.rows.data<int32_t>();
  const int64_t stride = args.x.stride(0) * size, count = args.out.size(0);
  for_blocks(stream, args.x.size(0), std::max<int64_t>(1, kBlockBytes / bytes),
             [&](int64_t begin, int64_t end) {
               for (int64_t t = begin; t < end; ++t) {
                 if (rows[t] >= 0 && rows[t] < count)
                   std::memcpy(to + rows[t] * bytes, from + t * stride, static_cast<size_t>(bytes));
               }
             });
}

}  // namespace megatron::kernels::cpu
