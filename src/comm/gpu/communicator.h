// NCCL as seen by this room: the part that the CUDA plugin (device/cuda_plugin.h) provides.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "comm/group.h"

namespace megatron::comm {

// Identifier of a future communicator: its first rank makes it and sends it to the others.
struct CommunicatorId {
  std::array<char, 128> bytes{};
};

// One rank's end of a communicator, on one GPU. All calls except failure() and abort() come from
// one thread at a time and name a stream, on which they are queued: the data have moved once the
// stream has passed the call, which requires that the other ranks have made it, too. Addresses are
// on the GPU. Calls throw Error with NCCL's message, also after an abort, and whatever the
// communicator's patience throws, which is called repeatedly while NCCL is not ready (the first
// call to another rank waits for that rank). The destructor waits until the others destroy or abort
// theirs, or the patience throws.
class Communicator {
 public:
  struct Piece {
    void* data = nullptr;
    int64_t bytes = 0;
  };

  virtual ~Communicator() = default;
  // In place, on f32, f64 and integers of 1, 4 and 8 bytes. NCCL's order of additions is fixed for
  // a machine and its ranks.
  virtual void all_reduce(void* data, int64_t count, DType type, Reduce op, Stream& stream) = 0;
  // in [size * count], out [count].
  virtual void reduce_scatter(const void* in, void* out, int64_t count, DType type, Reduce op,
                              Stream& stream) = 0;
  virtual void all_gather(const void* in, void* out, int64_t bytes, Stream& stream) = 0;
  virtual void broadcast(void* data, int64_t bytes, int root, Stream& stream) = 0;
  // Piece r of `out` is sent to rank r, piece r of `in` comes from rank r. The rank's own piece is
  // copied.
  virtual void exchange(std::span<const Piece> out, std::span<const Piece> in, Stream& stream) = 0;
  // Done once the other rank has received it.
  virtual void send(const void* data, int64_t bytes, int to, Stream& stream) = 0;
  virtual void receive(void* data, int64_t bytes, int from, Stream& stream) = 0;

  // NCCL's reason for giving up; empty: it has not. Thread-safe.
  virtual std::string failure() = 0;
  // Ends everything queued at once, in any state. Thread-safe.
  virtual void abort() noexcept = 0;
};

// Throws Error if waiting must stop.
using Patience = std::function<void()>;

class Nccl {
 public:
  virtual ~Nccl() = default;
  virtual CommunicatorId make_id() const = 0;
  // Returns once all ranks have joined. Each rank has its own GPU. Any thread that uses the
  // communicator may call the patience, for as long as the communicator lives.
  virtual std::unique_ptr<Communicator> join(const CommunicatorId& id, int rank, int size,
                                             Device device, Patience patience) const = 0;
  // Unique among the GPUs of a machine, independent of the GPU's index in this process.
  virtual int64_t place_of(Device device) const = 0;
  // out[i] = sources[0 * stride + i], sources[1 * stride + i], ... of `ranks`, combined in order in
  // f32 (f64 for f64, 64-bit integers for integers) and rounded once: the arithmetic of
  // comm/reduce.h, for all floating-point types and 2-byte integers. stride: elements. out may
  // start at the same address as a source.
  virtual void reduce(const void* sources, int64_t stride, int ranks, void* out, int64_t count,
                      DType type, Reduce op, Stream& stream) const = 0;
  // Synchronous copies do not wait for this stream (device/cuda/waited.h).
  virtual void set_aside(Stream& stream) const = 0;
  // See CudaStream::on_wait().
  virtual void on_wait(Stream& stream, const void* key,
                       const std::function<void(bool ends)>& on_wait) const = 0;
};

// NCCL as the open plugin provides it; throws Error without one.
const Nccl& nccl();

}  // namespace megatron::comm
