#include "training/objective.h"

#include <algorithm>

namespace megatron::training {
namespace {

// Row of each token of `rank` in whole sequences.
template <class F>
void for_each_row(const corpus::HostBatch& batch, int rank, const F& f) {
  const parallel::TokenLayout& layout = batch.layout;
  const auto rows = static_cast<size_t>(layout.rows()), held = static_cast<size_t>(layout.held());
  const std::span<const int32_t> indices =
      std::span(batch.rank_indices).subspan(static_cast<size_t>(rank) * rows, rows);
  for (size_t i = 0; i < rows; ++i)
    f(i, i / held * static_cast<size_t>(layout.length) + static_cast<size_t>(indices[i]));
}

}  // namespace

std::vector<double> values_of_sequences(const Tensor& values, const corpus::HostBatch& batch,
                                        comm::Group* context, Runtime& runtime) {
  Stream& stream = runtime.stream();
  Tensor all = values;
  if (context != nullptr) {
    const int64_t rows = values.size(0) * context->size();
    const Shape shape = values.rank() == 1 ? Shape{rows} : Shape{rows, values.size(1)};
    all = Tensor::empty(runtime.arena(MemoryClass::activations), shape, values.dtype(),
                        "objective.values");
    context->all_gather(values, all, stream, "objective.values").wait(stream);
  }
  if (!runtime.device().has_data()) return {};
  stream.synchronize();
  std::vector<double> by_rank = to_doubles(all);
  if (context == nullptr) return by_rank;
  const auto rows = static_cast<size_t>(values.size(0)),
             width = by_rank.size() / rows / static_cast<size_t>(context->size());
  std::vector<double> whole(by_rank.size());
  for (int rank = 0; rank < context->size(); ++rank) {
    const auto begin = static_cast<std::ptrdiff_t>(static_cast<size_t>(rank) * rows * width);
    for_each_row(batch, rank, [&](size_t i, size_t row) {
      std::copy_n(by_rank.begin() + begin + static_cast<std::ptrdiff_t>(i * width), width,
                  whole.begin() + static_cast<std::ptrdiff_t>(row * width));
    });
  }
  return whole;
}

bool leads_context(const parallel::Ranks& ranks) {
  const comm::Group* context = ranks.modules().context;
  return context == nullptr || context->rank() == 0;
}

std::vector<double> held_gradients(std::span<const double> gradients,
                                   const corpus::HostBatch& batch) {
  if (batch.rank_indices.empty()) return {gradients.begin(), gradients.end()};
  const size_t width =
      gradients.size() / static_cast<size_t>(batch.layout.sequences * batch.layout.length);
  std::vector<double> held(static_cast<size_t>(batch.layout.rows()) * width);
  for_each_row(batch, batch.layout.rank, [&](size_t i, size_t row) {
    std::copy_n(gradients.begin() + static_cast<std::ptrdiff_t>(row * width), width,
                held.begin() + static_cast<std::ptrdiff_t>(i * width));
  });
  return held;
}

}  // namespace megatron::training
