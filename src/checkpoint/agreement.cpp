#include "checkpoint/agreement.h"

#include <algorithm>

namespace megatron::checkpoint {

void put_together(comm::Group& ranks, Stream& stream, std::span<uint64_t> values,
                  std::string_view call) {
  if (ranks.size() == 1 || values.empty()) return;
  const Tensor tensor = Tensor::empty(stream.scratch(), Shape{static_cast<int64_t>(values.size())},
                                      DType::i64, "save");
  copy_bytes_from(tensor, std::as_bytes(values));
  ranks.all_reduce(tensor, comm::Reduce::sum, stream, call).wait(stream);
  stream.synchronize();
  copy_bytes_to(tensor, std::as_writable_bytes(values));
}

void agree(comm::Group& ranks, Stream& stream, const std::string& error, uint64_t plan,
           std::string_view call) {
  const size_t size = static_cast<size_t>(ranks.size()), rank = static_cast<size_t>(ranks.rank());
  std::vector<uint64_t> reports(2 * size);
  reports[rank] = error.size();
  reports[size + rank] = plan;
  put_together(ranks, stream, reports, call);

  const auto failed = std::find_if(reports.begin(), reports.begin() + ranks.size(),
                                   [](uint64_t length) { return length > 0; });
  const size_t first = static_cast<size_t>(failed - reports.begin());
  if (first < size) {
    if (size == 1) throw AgreedError(error);
    const Tensor text = Tensor::empty(stream.scratch(), Shape{static_cast<int64_t>(reports[first])},
                                      DType::u8, "save");
    if (first == rank) copy_bytes_from(text, std::as_bytes(std::span(error)));
    ranks.broadcast(text, static_cast<int>(first), stream, call).wait(stream);
    stream.synchronize();
    std::string reason(reports[first], ' ');
    copy_bytes_to(text, std::as_writable_bytes(std::span(reason)));
    throw AgreedError(reason);
  }
  for (size_t r = 1; r < size; ++r) {
    if (reports[size + r] != reports[size])
      throw AgreedError(fmt::format(
          "ranks 0 and {} would save different tensors: all ranks must hold the same model", r));
  }
}

}  // namespace megatron::checkpoint
