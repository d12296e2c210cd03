#include "comm/call_header.h"

#include <fmt/core.h>

#include <utility>

#include "comm/arguments.h"
#include "comm/reduce.h"

namespace megatron::comm {

namespace {

// Formats "call 12 of 'tp'".
std::string number_text(const CallHeader& h) {
  if (h.number == 0) return {};
  const char* const kind = h.operation == "recv" ? "message" : "call";
  return fmt::format("{} {} of '{}'", kind, h.number, h.group);
}

// Bytes that do not depend on the rank.
int64_t common_bytes(const GroupCall& c) {
  if (c.operation == Operation::all_to_all) return row_bytes(c.in);
  return (c.operation == Operation::reduce_scatter ? c.out : c.in).bytes();
}

}  // namespace

CallHeader header_of(const GroupCall& c, std::string text) {
  text.assign(c.name);
  return {.operation = name(c.operation),
          .call = std::move(text),
          .type = c.in.dtype(),
          .bytes = common_bytes(c),
          .op = c.op,
          .root = c.operation == Operation::broadcast ? c.peer : -1,
          .has_data = c.in.device().has_data(),
          .send_counts = c.send_counts,
          .receive_counts = c.receive_counts,
          .group = {}};
}

std::string short_text(const CallHeader& h) {
  const std::string number = number_text(h);
  return fmt::format("{} '{}'{}", h.operation, h.call, number.empty() ? "" : " (" + number + ")");
}

std::string describe(const CallHeader& h) {
  if (h.operation == "barrier" || h.operation == "split" || h.operation == "end")
    return short_text(h);
  const std::string number = number_text(h);
  std::string text = fmt::format("{} '{}' ({}{}{} bytes of {}", h.operation, h.call, number,
                                 number.empty() ? "" : ", ", h.bytes, name(h.type));
  const bool reduces = h.operation == "all_reduce" || h.operation == "reduce_scatter";
  if (reduces) text += fmt::format(", {}", name(h.op));
  if (h.root >= 0) text += fmt::format(", root {}", h.root);
  return text + (h.has_data ? ")" : ", on meta)");
}

bool same_call(const CallHeader& a, const CallHeader& b) {
  return a.operation == b.operation && a.call == b.call && a.type == b.type && a.bytes == b.bytes &&
         a.op == b.op && a.root == b.root && a.has_data == b.has_data;
}

std::string disagreement(FunctionRef<const CallHeader&(int rank)> header,
                         std::span<const int> members) {
  const int size = static_cast<int>(members.size());
  const auto member = [&](int rank) { return members[static_cast<size_t>(rank)]; };
  const CallHeader& first = header(0);
  for (int r = 1; r < size; ++r) {
    const CallHeader& other = header(r);
    if (same_call(first, other)) continue;
    return fmt::format(
        "rank {} calls {} while rank {} calls {}: all ranks of a group must make the same calls in "
        "the same order",
        member(0), describe(first), member(r), describe(other));
  }
  if (first.send_counts.empty()) return {};
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const int64_t sent = header(from).send_counts[static_cast<size_t>(to)];
      const int64_t received = header(to).receive_counts[static_cast<size_t>(from)];
      if (sent == received) continue;
      return fmt::format("in {} rank {} sends {} rows to rank {}, which expects {}",
                         describe(header(from)), member(from), sent, member(to), received);
    }
  }
  return {};
}

}  // namespace megatron::comm
