// Messages in flight from one rank to another of the same process.
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
  int64_t number = 0;  // number among the sender's messages to this receiver in the group, from 1
  std::vector<std::byte> data;  // empty on meta
};

// First in, first out; buffers are reused for later messages. The number in flight depends on
// timing, so buffers are allocated ahead: several with the first message, and as many again
// whenever all are in use. Not synchronized.
class Mailbox {
 public:
  bool empty() const { return queue_.empty(); }
  // Returns a message with room for the tensor, to be filled by pack and added by push.
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
// Reason why the message does not match the header of a recv; empty if it does. from, to: ranks of
// the world.
std::string mismatch(const Message& message, const CallHeader& header, int from, int to);
void unpack(const Message& message, Tensor& tensor);

}  // namespace megatron::comm
