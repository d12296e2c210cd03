// Messages between `megatron launch` and the guard of each rank over a local socket, and handles of
// the operating system.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
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

enum class MessageKind : uint8_t {
  hello = 1,     // guard: a = rank, b = size
  output,        // guard: bytes of standard output
  error_output,  // guard: bytes of standard error
  ended,    // guard: a = the program's status as waitpid gives it, b = 1 if it was asked to end
  signal,   // launch: a = signal for the program, b = 1 if the run ends
  release,  // launch: the guard may end
};

struct Message {
  MessageKind kind = MessageKind::hello;
  int32_t a = 0, b = 0;
  std::string text;
};

constexpr size_t kMaxBytes = size_t{64} << 10;  // of a message's text

// A connected, non-blocking socket. Throws Error for bytes that are not messages.
class Channel {
 public:
  explicit Channel(Descriptor socket);

  int file() const { return socket_.get(); }
  void send(const Message& message);  // queues it, and writes as much as the socket accepts
  void flush();
  // Appends the received messages; returns false once the other side is gone and everything has
  // been read.
  bool receive(std::vector<Message>& messages);
  size_t queued() const { return queued_; }

 private:
  Descriptor socket_;
  std::deque<std::string> out_;
  size_t queued_ = 0;  // bytes
};

// Environment variable that tells a guard the name of its launch's socket.
inline constexpr const char* kLaunchVariable = "MEGATRON_LAUNCH";

// A listening socket with a unique name.
struct Listener {
  Descriptor socket;
  std::string name;
};
Listener listen();
// An accepted connection from this user; not open if there is none.
Descriptor accept(const Listener& listener);
Descriptor connect(const std::string& name);  // throws Error

}  // namespace megatron::comm::launch
