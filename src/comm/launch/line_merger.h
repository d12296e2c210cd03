// Lines of several ranks in one stream, each whole.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megatron::comm::launch {

// The longest line that is kept together; a longer one is printed in pieces of this size.
constexpr size_t kLongestLine = size_t{16} << 20;

// One output stream of all ranks. Bytes of a rank come in pieces of any size; what is returned is
// the complete lines, each with "[rank] " before it where prefix is set.
class LineMerger {
 public:
  LineMerger(int ranks, bool prefix) : parts_(static_cast<size_t>(ranks)), prefix_(prefix) {}

  std::string add(int rank, std::string_view bytes);
  std::string end(int rank);  // a last line without a newline gets one

 private:
  std::string line(int rank, std::string_view text) const;

  std::vector<std::string> parts_;
  bool prefix_;
};

}  // namespace megatron::comm::launch
