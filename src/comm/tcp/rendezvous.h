// TCP between the processes of a run without MPI: their meeting point and their messages.
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
  std::string port_by = "MASTER_PORT";  // the setting that the port comes from
  // "SLURM_JOB_ID 71": identifier that all processes of the run share; empty: unknown.
  std::string run;
};

// Reads MASTER_ADDR, a host name or an IPv4 or IPv6 address, and MASTER_PORT; the port after it if
// torchrun keeps MASTER_PORT for itself (TORCHELASTIC_USE_AGENT_STORE is True). The run is
// identified by TORCHELASTIC_RUN_ID or SLURM_JOB_ID. Throws Error if either of the first two is
// missing or the port is invalid.
RendezvousAddress rendezvous_address(const Variable& variable);

// A connection that carries frames: a magic number, a kind, a length, and that many bytes. One
// thread may send while another receives; shut() may be called from any.
class Line {
 public:
  Line(launch::Descriptor socket) : socket_(std::move(socket)) {}
  // Throws Error if the other end is closed.
  void send(uint32_t kind, std::string_view bytes);
  // Empty if the other end is closed, or sends bytes that are not a frame, or a frame of more than
  // `most` bytes.
  struct Frame {
    uint32_t kind = 0;
    std::string bytes;
  };
  std::optional<Frame> receive(int64_t most);
  // Seconds that receive() waits; 0: without limit.
  void set_patience(int seconds);
  void shut();

 private:
  launch::Descriptor socket_;
};

// Tries all addresses of the place's name repeatedly for up to `seconds`; then throws Error naming
// the place and the last reasons.
Line connect_to(const RendezvousAddress& place, double seconds);

// Listens at a port on all addresses of this host, IPv4 and IPv6. Throws Error if the port is in
// use.
class Reception {
 public:
  explicit Reception(const RendezvousAddress& place);
  std::optional<Line> accept();  // empty if the listener was shut
  void shut();

 private:
  launch::Descriptor socket_;
};

}  // namespace megatron::comm
