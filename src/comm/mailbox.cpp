#include "comm/mailbox.h"

#include <fmt/core.h>

#include <cstring>

#include "base/error.h"
#include "comm/arguments.h"

namespace megatron::comm {

Message Mailbox::take_spare() {
  if (spare_.empty()) return {};
  Message message = std::move(spare_.back());
  spare_.pop_back();
  return message;
}

Message Mailbox::pop() {
  MG_ASSERT(!queue_.empty());
  Message message = std::move(queue_.front());
  queue_.pop_front();
  return message;
}

void pack(const Tensor& tensor, std::string_view call, Message& message) {
  message.call = call;
  message.type = tensor.dtype();
  message.bytes = tensor.bytes();
  const std::byte* data = host_data(tensor);
  message.data.resize(data == nullptr ? 0 : static_cast<size_t>(message.bytes));
  if (!message.data.empty()) std::memcpy(message.data.data(), data, message.data.size());
}

std::string mismatch(const Message& message, const Tensor& tensor, std::string_view call, int from,
                     int to) {
  if (message.call == call && message.type == tensor.dtype() && message.bytes == tensor.bytes())
    return {};
  return fmt::format(
      "rank {} sent '{}' ({} bytes of {}) while rank {} waits for '{}' ({} bytes of {}) from it",
      from, message.call, message.bytes, name(message.type), to, call, tensor.bytes(),
      name(tensor.dtype()));
}

void unpack(const Message& message, Tensor& tensor) {
  std::byte* data = host_data(tensor);
  if (data == nullptr || message.data.empty()) return;
  std::memcpy(data, message.data.data(), message.data.size());
}

}  // namespace megatron::comm
