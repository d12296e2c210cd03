#include "comm/mailbox.h"

#include <fmt/core.h>

#include <cstring>

#include "base/error.h"
#include "comm/arguments.h"

namespace megatron::comm {
namespace {

constexpr size_t kFirstBuffers = 8;

}  // namespace

Message Mailbox::take_spare(const Tensor& tensor) {
  if (spare_.empty()) {
    const size_t more = made_ == 0 ? kFirstBuffers : made_;
    made_ += more;
    const size_t bytes = host_data(tensor) == nullptr ? 0 : static_cast<size_t>(tensor.bytes());
    for (size_t i = 0; i < more; ++i) spare_.emplace_back().data.reserve(bytes);
  }
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

std::string mismatch(const Message& message, const CallHeader& header, int from, int to) {
  if (message.call == header.call && message.type == header.type && message.bytes == header.bytes)
    return {};
  CallHeader sent = {.operation = "recv", .call = message.call};
  sent.group = header.group;
  sent.number = message.number;
  sent.type = message.type;
  sent.bytes = message.bytes;
  // Formats "'forward 3' (message 4 of 'pp', 8 bytes of f32)".
  const auto text = [](const CallHeader& h) { return describe(h).substr(h.operation.size() + 1); };
  return fmt::format("rank {} sent {} while rank {} waits for {} from it", from, text(sent), to,
                     text(header));
}

void unpack(const Message& message, Tensor& tensor) {
  std::byte* data = host_data(tensor);
  if (data == nullptr || message.data.empty()) return;
  std::memcpy(data, message.data.data(), message.data.size());
}

}  // namespace megatron::comm
