// Merges the lines of several ranks into one stream without splitting a line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megatron::comm::launch {

// Longest line that is kept together; longer ones are printed in pieces of this size.
constexpr size_t kLongestLine = size_t{16} << 20;

// One output stream of all ranks. Bytes of a rank arrive in pieces of any size; returns the
// complete lines, each prefixed with "[rank] " if prefix is set.
class LineMerger {
 public:
  LineMerger(int ranks, bool prefix) : parts_(static_cast<size_t>(ranks)), prefix_(prefix) {}

  std::string add(int rank, std::string_view bytes);
  std::string end(int rank);  // adds a newline to an unterminated last line

 private:
  std::string line(int rank, std::string_view text) const;

  std::vector<std::string> parts_;
  bool prefix_;
};

}  // namespace megatron::comm::launch
