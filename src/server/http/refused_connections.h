// Connections beyond a server's limit: a single thread answers and closes all of them.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace megatron::server {

// No connection can delay another one or the thread that accepts connections, regardless of what
// its client sends or omits. It has a short time for the beginning of its request, then it is
// answered, and it is closed once the client has read the answer. If there are more than `kMax`,
// the oldest are closed earlier.
class RefusedConnections {
 public:
  // Returns the bytes of the reply to a request that begins with `bytes`, which may be empty. Must
  // not throw.
  using Answer = std::function<std::string(std::string_view bytes)>;

  explicit RefusedConnections(Answer answer);
  ~RefusedConnections();  // closes the open connections
  RefusedConnections(const RefusedConnections&) = delete;
  RefusedConnections& operator=(const RefusedConnections&) = delete;

  void add(int socket);  // takes ownership of the socket

 private:
  static constexpr size_t kMax = 64;
  using Time = std::chrono::steady_clock::time_point;
  struct Open {
    int socket;
    Time until;  // deadline for the first bytes, then for the end
    bool answered = false;
  };

  void run();
  bool take_new();
  void wait();
  bool serve(Open& open, bool readable);
  void close_at_once(Open& open);
  void answer(Open& open, std::string_view bytes) const;

  const Answer answer_;
  const int wake_;  // an eventfd
  std::mutex mutex_;
  std::vector<int> new_;
  bool ends_ = false;
  // The members below are used by the thread only.
  std::vector<Open> open_;  // oldest first
  std::array<char, 65536> buffer_;
  std::thread thread_;
};

}  // namespace megatron::server
