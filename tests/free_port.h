// Finds a TCP port of this machine without a listener.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace megatron::testing {

inline int free_port() {
  const int file = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(file, reinterpret_cast<sockaddr*>(&address), length), 0);
  ::getsockname(file, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(file);
  return ntohs(address.sin_port);
}

}  // namespace megatron::testing
