// TCP between the processes of a run that no MPI connects: where they meet, and what they tell each
// other.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "comm/launch/channel.h"
#include "comm/processes.h"

namespace megatron::comm {

struct RendezvousAddress {
  std::string address;
  int port = 0;
  std::string port_by = "MASTER_PORT";  // where it comes from
  std::string run;  // "SLURM_JOB_ID 71": that those who meet have alike; empty: unknown
};

// MASTER_ADDR, a name or an address of IPv4 or IPv6, and MASTER_PORT; the port next to it where
// torchrun keeps that one for itself (TORCHELASTIC_USE_AGENT_STORE is True). The run is that of
// TORCHELASTIC_RUN_ID or SLURM_JOB_ID. Throws Error where one of the first is missing or is no port.
RendezvousAddress rendezvous_address(const Variable& variable);

// A connection that carries frames: a magic number, a kind, a length, and as many bytes. One thread
// sends at a time and one receives; shut() may come from any.
class Line {
 public:
  Line(launch::Descriptor socket) : socket_(std::move(socket)) {}
  // Throws Error where the other end has ended.
  void send(uint32_t kind, std::string_view bytes);
  // Empty: the other end has ended, or sends what is no frame, or one of more than `most` bytes.
  struct Frame {
    uint32_t kind = 0;
    std::string bytes;
  };
  std::optional<Frame> receive(int64_t most);
  // Seconds that a receive() waits; 0: any time.
  void set_patience(int seconds);
  void shut();

 private:
  launch::Descriptor socket_;
};

// Tries all addresses that the place's name has, again and again until `seconds` are over; then
// throws Error naming the place and the last reasons.
Line connect_to(const RendezvousAddress& place, double seconds);

// Waits at a port of all addresses of this host, of IPv4 and IPv6. Throws Error where it is taken.
class Reception {
 public:
  explicit Reception(const RendezvousAddress& place);
  std::optional<Line> accept();  // empty: it was shut
  void shut();

 private:
  launch::Descriptor socket_;
};

}  // namespace megatron::comm
