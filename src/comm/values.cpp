#include "comm/values.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace megatron::comm {
namespace {

// Bytes up to this number are sent together with their length.
constexpr size_t kShort = 2048;

void broadcast_piece(Group& ranks, Stream& stream, std::span<std::byte> bytes, int root,
                     std::string_view call) {
  const Tensor tensor =
      Tensor::empty(stream.scratch(), Shape{static_cast<int64_t>(bytes.size())}, DType::u8, call);
  if (ranks.rank() == root) copy_bytes_from(tensor, bytes);
  ranks.broadcast(tensor, root, stream, call).wait(stream);
  stream.synchronize();
  copy_bytes_to(tensor, bytes);
}

}  // namespace

void largest(Group& ranks, Stream& stream, std::span<double> values, std::string_view call) {
  if (ranks.size() == 1 || values.empty()) return;
  const Tensor tensor =
      Tensor::empty(stream.scratch(), Shape{static_cast<int64_t>(values.size())}, DType::f64, call);
  copy_bytes_from(tensor, std::as_bytes(values));
  ranks.all_reduce(tensor, Reduce::max, stream, call).wait(stream);
  stream.synchronize();
  copy_bytes_to(tensor, std::as_writable_bytes(values));
}

void broadcast(Group& ranks, Stream& stream, std::string& bytes, int root, std::string_view call) {
  if (ranks.size() == 1) return;
  std::array<std::byte, sizeof(uint64_t) + kShort> head{};
  uint64_t size = bytes.size();
  std::memcpy(head.data(), &size, sizeof size);
  std::memcpy(head.data() + sizeof size, bytes.data(), std::min(bytes.size(), kShort));
  broadcast_piece(ranks, stream, head, root, call);
  std::memcpy(&size, head.data(), sizeof size);
  bytes.resize(size);
  const size_t first = std::min(bytes.size(), kShort);
  std::memcpy(bytes.data(), head.data() + sizeof size, first);
  if (first == bytes.size()) return;
  broadcast_piece(ranks, stream, std::as_writable_bytes(std::span(bytes).subspan(first)), root,
                  call);
}

}  // namespace megatron::comm
