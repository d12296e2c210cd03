#include "training/gradient_zeros.h"

#include <algorithm>

#include "kernels/table.h"
#include "tensor/tensor.h"

namespace megatron::training {
namespace {

template <class T>
int64_t zeros_in(const Tensor& values, int64_t begin, int64_t end) {
  const T* const data = values.data<T>();
  return std::count(data + begin, data + end, T{0});
}

int64_t zeros_of(const parallel::Shard& shard) {
  const Tensor values = on_host(shard.gradient);
  int64_t zeros = 0;
  parallel::for_each_run(*shard.placed, [&](const auto&, int64_t, int64_t local, int64_t size) {
    const int64_t begin = std::max(local - shard.begin, int64_t{0});
    const int64_t end = std::min(local + size - shard.begin, shard.size());
    if (begin >= end) return;
    zeros += values.dtype() == DType::f64 ? zeros_in<double>(values, begin, end)
                                          : zeros_in<float>(values, begin, end);
  });
  return zeros;
}

}  // namespace

int64_t gradient_zeros(std::span<const parallel::Shard> shards, const parallel::Ranks& ranks,
                       Runtime& runtime) {
  runtime.stream().synchronize();
  int64_t zeros = 0;
  for (const parallel::Shard& shard : shards)
    if (shard.counted && shard.gradient.defined() && shard.size() > 0) zeros += zeros_of(shard);
  comm::Group* const group = ranks.norm();
  if (group == nullptr) return zeros;
  const auto mine = static_cast<double>(zeros);  // exact below 2^53
  Tensor all = Tensor::empty(runtime.arena(MemoryClass::scratch), {}, DType::f64, "gradient.zeros");
  copy_from(all, std::span<const double>(&mine, 1));
  group->all_reduce(all, comm::Reduce::sum, runtime.stream(), "gradient.zeros")
      .wait(runtime.stream());
  return static_cast<int64_t>(read_scalar(all, runtime.stream()));
}

}  // namespace megatron::training
