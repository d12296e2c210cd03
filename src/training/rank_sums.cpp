#include "training/rank_sums.h"

#include <algorithm>
#include <array>

namespace megatron::training {

void sum_over_tokens(const Tensor& sums, const parallel::Ranks& ranks, Stream& stream,
                     std::string_view call) {
  ranks.replicas().all_reduce(sums, comm::Reduce::sum, stream, call).wait(stream);
  if (ranks.stages() == nullptr) return;
  const parallel::PipelineShape& shape = ranks.pipeline();
  ranks.stages()
      ->broadcast(sums, shape.stage_of(shape.virtual_stages() - 1), stream, call)
      .wait(stream);
}

std::vector<double> sum_over_tokens(std::span<const double> mine, const parallel::Ranks& ranks,
                                    Runtime& runtime, std::string_view call) {
  constexpr size_t kUnroll = 2048;
  Tensor piece = Tensor::empty(runtime.arena(MemoryClass::activations),
                               {static_cast<int64_t>(kUnroll)}, DType::f64, call);
  const bool has_data = runtime.device().has_data();
  std::vector<double> all(mine.begin(), mine.end());
  for (size_t begin = 0; begin < all.size(); begin += kUnroll) {
    const std::span<double> part =
        std::span(all).subspan(begin, std::min(kUnroll, all.size() - begin));
    std::array<double, kUnroll> values{};
    std::ranges::copy(part, values.begin());
    if (has_data) copy_bytes_from(piece, std::as_bytes(std::span(values)));
    sum_over_tokens(piece, ranks, runtime.stream(), call);
    runtime.stream().synchronize();
    if (!has_data) continue;
    copy_bytes_to(piece, std::as_writable_bytes(std::span(values)));
    std::ranges::copy(std::span(values).first(part.size()), part.begin());
  }
  return all;
}

}  // namespace megatron::training
