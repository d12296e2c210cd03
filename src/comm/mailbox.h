// Messages on their way from one rank to another of one process.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call_header.h"
#include "tensor/tensor.h"

namespace megatron::comm {

struct Message {
  std::string call;
  DType type = DType::f32;
  int64_t bytes = 0;
  int64_t number = 0;           // among the sender's to this receiver in the group, from 1
  std::vector<std::byte> data;  // empty on meta
};

// First in, first out; buffers are kept for the next messages. How many are on their way at once is
// a matter of time, so that buffers are made ahead: several with the first message, and as many
// again whenever all are in use. Not synchronised.
class Mailbox {
 public:
  bool empty() const { return queue_.empty(); }
  // A message with room for the tensor: to be filled by pack and put in with push.
  Message take_spare(const Tensor& tensor);
  void push(Message message) { queue_.push_back(std::move(message)); }
  Message pop();
  void give_back(Message message) { spare_.push_back(std::move(message)); }

 private:
  std::deque<Message> queue_;
  std::vector<Message> spare_;
  size_t made_ = 0;
};

void pack(const Tensor& tensor, std::string_view call, Message& message);
// Why the message is not what the header of a recv waits for; empty when it is. from, to: ranks of
// the world.
std::string mismatch(const Message& message, const CallHeader& header, int from, int to);
void unpack(const Message& message, Tensor& tensor);

}  // namespace megatron::comm
