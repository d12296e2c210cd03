#include "comm/launch/line_merger.h"

#include <fmt/core.h>

namespace megatron::comm::launch {

std::string LineMerger::line(int rank, std::string_view text) const {
  return prefix_ ? fmt::format("[{}] {}\n", rank, text) : fmt::format("{}\n", text);
}

std::string LineMerger::add(int rank, std::string_view bytes) {
  std::string& part = parts_[static_cast<size_t>(rank)];
  std::string lines;
  for (size_t end = 0; (end = bytes.find('\n')) != bytes.npos; bytes.remove_prefix(end + 1)) {
    part += bytes.substr(0, end);
    lines += line(rank, part);
    part.clear();
  }
  part += bytes;
  if (part.size() >= kLongestLine) lines += end(rank);
  return lines;
}

std::string LineMerger::end(int rank) {
  std::string& part = parts_[static_cast<size_t>(rank)];
  if (part.empty()) return {};
  std::string text = line(rank, part);
  part.clear();
  return text;
}

}  // namespace megatron::comm::launch
