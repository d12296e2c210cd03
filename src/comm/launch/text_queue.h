// Output that never makes its writer wait.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace megatron::comm::launch {

constexpr size_t kMostWaiting = size_t{64} << 20;  // bytes, beyond which its feeders should pause

class TextQueue {
 public:
  explicit TextQueue(int file) : file_(file) {}

  void add(std::string_view text) { text_ += text; }
  bool empty() const { return waiting() == 0; }
  bool full() const { return waiting() > kMostWaiting; }
  int file() const { return file_; }
  // Writes a piece that a pipe takes without a wait when poll() has said it is ready.
  void write_some();

 private:
  size_t waiting() const { return text_.size() - written_; }

  int file_;
  std::string text_;
  size_t written_ = 0;
};

}  // namespace megatron::comm::launch
