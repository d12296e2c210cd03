#include "checkpoint/exchange.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace megatron::checkpoint {
namespace {

Tensor numbers(Stream& stream, int64_t count) {
  return Tensor::empty(stream.scratch(), Shape{count}, DType::i64, "checkpoint");
}

Tensor tensor_of(Stream& stream, std::span<const int64_t> values) {
  const Tensor tensor = numbers(stream, static_cast<int64_t>(values.size()));
  copy_bytes_from(tensor, std::as_bytes(values));
  return tensor;
}

Numbers values_of(const Tensor& tensor) {
  Numbers values(static_cast<size_t>(tensor.elements()));
  copy_bytes_to(tensor, std::as_writable_bytes(std::span(values)));
  return values;
}

int64_t sum(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

Numbers all_to_all(comm::Group& ranks, Stream& stream, const Numbers& values,
                   std::span<const int64_t> send_counts, std::span<const int64_t> receive_counts,
                   std::string_view call) {
  const Tensor in = tensor_of(stream, values), out = numbers(stream, sum(receive_counts));
  ranks.all_to_all(in, out, send_counts, receive_counts, stream, call).wait(stream);
  stream.synchronize();
  return values_of(out);
}

}  // namespace

std::vector<Numbers> exchange(comm::Group& ranks, Stream& stream, std::span<const Numbers> lists,
                              std::string_view call) {
  const size_t size = static_cast<size_t>(ranks.size());
  MG_ASSERT(lists.size() == size);
  Numbers send_counts, values;
  for (const Numbers& list : lists) {
    send_counts.push_back(static_cast<int64_t>(list.size()));
    values.insert(values.end(), list.begin(), list.end());
  }
  const Numbers ones(size, 1);
  const Numbers receive_counts = all_to_all(ranks, stream, send_counts, ones, ones, call);
  const Numbers received = all_to_all(ranks, stream, values, send_counts, receive_counts, call);
  std::vector<Numbers> result;
  auto at = received.begin();
  for (const int64_t count : receive_counts) {
    result.emplace_back(at, at + count);
    at += count;
  }
  return result;
}

Numbers gather(comm::Group& ranks, Stream& stream, std::span<const int64_t> mine,
               std::string_view call) {
  const Tensor in = tensor_of(stream, mine);
  const Tensor out = numbers(stream, in.elements() * ranks.size());
  ranks.all_gather(in, out, stream, call).wait(stream);
  stream.synchronize();
  return values_of(out);
}

}  // namespace megatron::checkpoint
