#include "training/weights_norm.h"

#include <cmath>

#include "base/divide.h"
#include "kernels/table.h"
#include "tensor/tensor.h"

namespace megatron::training {

double weights_norm(std::span<const parallel::Shard> shards, const parallel::Ranks& ranks,
                    Runtime& runtime) {
  const kernels::Table& table = kernels::table(runtime.stream());
  Arena& arena = runtime.arena(MemoryClass::scratch);
  const bool reads = runtime.device().has_data();
  double sum = 0;
  for (const parallel::Shard& shard : shards) {
    if (!shard.counted) continue;
    Tensor x = shard.value;
    const int64_t blocks = ceil_div(x.elements(), kernels::kNormBlock);
    if (blocks == 0) continue;
    if (x.dtype() != DType::f32 && x.dtype() != DType::f64) {
      const Tensor wide = Tensor::empty(arena, x.shape(), DType::f32, "weights_norm.wide");
      table.copy({.x = x, .out = wide}, runtime.stream());
      x = wide;
    }
    const Tensor partial = Tensor::empty(arena, {blocks}, DType::f64, "weights_norm.partial");
    const Tensor total = Tensor::empty(arena, {}, DType::f64, "weights_norm.total");
    table.sum_of_squares({.x = x, .partial = partial}, runtime.stream());
    table.sum({.x = partial, .out = total}, runtime.stream());
    if (reads) sum += read_scalar(total, runtime.stream());
  }
  if (comm::Group* const group = ranks.norm()) {
    Tensor all = Tensor::empty(arena, {}, DType::f64, "weights_norm.all");
    if (reads) copy_from(all, std::span<const double>(&sum, 1));
    group->all_reduce(all, comm::Reduce::sum, runtime.stream(), "weights.norm")
        .wait(runtime.stream());
    if (reads) sum = read_scalar(all, runtime.stream());
  }
  return std::sqrt(sum);
}

}  // namespace megatron::training
