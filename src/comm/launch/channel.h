// Messages between `megatron launch` and the guard of each rank, over TCP; and handles of the
// system.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::comm::launch {

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  int get() const { return value_; }
  bool open() const { return value_ >= 0; }
  void close();

 private:
  int value_;
};

struct Pipe {
  Descriptor read, write;  // closed at exec
};
Pipe make_pipe();  // throws Error

constexpr int kProtocol = 1;

enum class MessageKind : uint8_t {
  hello = 1,     // guard: a = rank, b = size, text = "TOKEN PROTOCOL HOST"
  output,        // guard: bytes of standard output
  error_output,  // guard: bytes of standard error
  ended,         // guard: a = the program's status as waitpid gives it, b = 1: it was asked to end
  signal,        // launch: a = signal for the program, b = 1: because the run ends
  release,       // launch: the guard may end; a = 1: with the program's exit code, else with 0
};

struct Message {
  MessageKind kind = MessageKind::hello;
  int32_t a = 0, b = 0;
  std::string text;
};

// A connected socket that never blocks. Throws Error for bytes that are no messages.
class Channel {
 public:
  explicit Channel(Descriptor socket);

  int file() const { return socket_.get(); }
  void send(const Message& message);  // into the queue, and as much as the socket takes
  void flush();
  // Appends what has come; false when the other side is gone and all is read.
  bool receive(std::vector<Message>& messages);
  size_t queued() const { return out_.size() - sent_; }

 private:
  Descriptor socket_;
  std::string in_, out_;
  size_t sent_ = 0;
  bool gone_ = false;
};

// Where a guard finds its launch, as one environment variable's value:
// "TOKEN,PORT,ADDRESS,ADDRESS...".
inline constexpr const char* kListenAddressVariable = "MEGATRON_LAUNCH";

struct ListenAddress {
  std::string token;
  int port = 0;
  std::vector<std::string> addresses;  // numeric

  std::string text() const;
  static ListenAddress parse(std::string_view text);  // throws Error
};

// A socket that listens, on this machine's loopback or on all its addresses, with a fresh token.
struct Listener {
  Descriptor socket;
  ListenAddress address;
};
Listener listen(bool other_hosts);
Descriptor connect(const ListenAddress& listen_address);  // throws Error naming the addresses tried

std::string host_name();

}  // namespace megatron::comm::launch
