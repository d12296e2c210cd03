// A client's connection: bytes with deadlines and limits.
#pragma once

#include <httplib.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>

#include "server/http/http_server.h"

namespace megatron::server {

// Owns the socket; used by one thread.
class Connection final : public httplib::Stream {
 public:
  // stopping: once true, the connection no longer waits for further requests.
  Connection(int socket, const HttpLimits& limits, const std::atomic<bool>& stopping);
  ~Connection() override;

  // Waits for the first byte of a request, then starts the time limit of its headers. Returns false
  // if no request arrives.
  bool wait_for_request();
  void begin_body();  // call when the headers are complete
  bool peer_gone() const;
  // Closes the connection after the current reply.
  void close_after_answer() { closes_ = true; }
  bool closes() const { return closes_; }
  // Status of the limit that prevented reading a request: 408, 413 or 431; 0: none of these.
  int trouble() const { return trouble_; }

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* bytes, size_t size) override;
  ssize_t write(const char* bytes, size_t size) override;
  using httplib::Stream::write;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  using Time = std::chrono::steady_clock::time_point;

  ssize_t fill();
  bool wait(short events, Time until) const;
  void finish() const;

  const int socket_;
  const HttpLimits& limits_;
  const std::atomic<bool>& stopping_;
  std::array<char, 8192> buffer_{};
  size_t begin_ = 0, end_ = 0;  // range of bytes read from the socket but not consumed
  Time deadline_{};
  int64_t budget_ = 0;  // bytes that may still be read
  bool in_body_ = false, closes_ = false;
  int trouble_ = 0;
};

}  // namespace megatron::server
