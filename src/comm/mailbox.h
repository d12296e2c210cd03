// Messages on their way from one rank to another of one process.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace megatron::comm {

struct Message {
  std::string call;
  DType type = DType::f32;
  int64_t bytes = 0;
  std::vector<std::byte> data;  // empty on meta
};

// First in, first out; buffers are kept for the next messages. Not synchronised.
class Mailbox {
 public:
  bool empty() const { return queue_.empty(); }
  // A message whose buffer may be used again: to be filled by pack and put in with push.
  Message take_spare();
  void push(Message message) { queue_.push_back(std::move(message)); }
  Message pop();
  void give_back(Message message) { spare_.push_back(std::move(message)); }

 private:
  std::deque<Message> queue_;
  std::vector<Message> spare_;
};

void pack(const Tensor& tensor, std::string_view call, Message& message);
// Why the message is not what a recv of `tensor` under the name `call` waits for; empty when it is.
std::string mismatch(const Message& message, const Tensor& tensor, std::string_view call, int from,
                     int to);
void unpack(const Message& message, Tensor& tensor);

}  // namespace megatron::comm
