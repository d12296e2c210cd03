#include "comm/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "comm/mixed.h"

namespace megatron::comm {

namespace {

constexpr std::array<std::string_view, 7> kOperations = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier", "split"};

int64_t index_of(std::string_view operation) {
  const auto at = std::find(kOperations.begin(), kOperations.end(), operation);
  MG_ASSERT(at != kOperations.end());
  return at - kOperations.begin();
}

// The numbers of a header, in a fixed order.
std::array<int64_t, 7> numbers(const CallHeader& h) {
  return {index_of(h.operation),
          static_cast<int64_t>(h.type),
          h.bytes,
          static_cast<int64_t>(h.op),
          h.root,
          h.has_data ? 1 : 0,
          static_cast<int64_t>(h.send_counts.size())};
}

uint64_t digest(const CallHeader& header) {
  uint64_t hash = 0;
  for (const int64_t number : numbers(header)) hash = mixed(hash ^ static_cast<uint64_t>(number));
  for (const char c : header.call) hash = mixed(hash ^ static_cast<unsigned char>(c));
  return hash;
}

uint64_t weight(int rank) { return mixed(static_cast<uint64_t>(rank)); }
uint64_t weight(int from, int to) {
  return mixed(weight(from) ^ (static_cast<uint64_t>(to) << 32));
}

template <class T>
void put(std::string& bytes, const T* data, size_t count) {
  bytes.append(reinterpret_cast<const char*>(data), count * sizeof(T));
}

}  // namespace

uint64_t share_of_agreement(const CallHeader& header, int rank, int size) {
  uint64_t share = digest(header) * (weight(rank) - weight((rank + 1) % size));
  for (size_t r = 0; r < header.send_counts.size(); ++r) {
    const int other = static_cast<int>(r);
    share += static_cast<uint64_t>(header.send_counts[r]) * weight(rank, other);
    share -= static_cast<uint64_t>(header.receive_counts[r]) * weight(other, rank);
  }
  return share;
}

std::string packed(const CallHeader& header) {
  std::string bytes;
  const auto values = numbers(header);
  put(bytes, values.data(), values.size());
  put(bytes, header.send_counts.data(), header.send_counts.size());
  put(bytes, header.receive_counts.data(), header.receive_counts.size());
  return bytes + header.call;
}

CallHeader unpacked(std::string_view bytes, std::vector<int64_t>& counts) {
  std::array<int64_t, 7> values{};
  MG_ASSERT(bytes.size() >= sizeof values);
  std::memcpy(values.data(), bytes.data(), sizeof values);
  bytes.remove_prefix(sizeof values);
  const auto n = static_cast<size_t>(values[6]);
  counts.resize(2 * n);
  MG_ASSERT(bytes.size() / sizeof(int64_t) >= counts.size());
  if (n > 0) std::memcpy(counts.data(), bytes.data(), counts.size() * sizeof(int64_t));
  bytes.remove_prefix(counts.size() * sizeof(int64_t));

  CallHeader header;
  header.operation = kOperations.at(static_cast<size_t>(values[0]));
  header.call = bytes;
  header.type = static_cast<DType>(values[1]);
  header.bytes = values[2];
  header.op = static_cast<Reduce>(values[3]);
  header.root = static_cast<int>(values[4]);
  header.has_data = values[5] != 0;
  header.send_counts = std::span(counts).first(n);
  header.receive_counts = std::span(counts).last(n);
  return header;
}

}  // namespace megatron::comm
