// NCCL as this room sees it: what the CUDA plugin (device/cuda_plugin.h) holds of it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "comm/group.h"

namespace megatron::comm {

// Names a communicator that is to be: its first rank makes it, and sends it to the others.
struct CommunicatorId {
  std::array<char, 128> bytes{};
};

// One rank's end of a communicator, on one GPU. All calls but failure() and abort() come from one
// thread at a time and name one stream, on which they are queued: the data have moved when it has
// come that far, and that is when the other ranks have come, too. Addresses are the GPU's. Calls
// throw Error with NCCL's words, after an abort, and what the patience throws that the communicator
// was made with: it is asked again and again while NCCL is not ready (a first call to another rank
// waits for that one). Destruction waits until the others destroy or abort theirs, or the patience
// ends.
class Communicator {
 public:
  struct Piece {
    void* data = nullptr;
    int64_t bytes = 0;
  };

  virtual ~Communicator() = default;
  // f32, f64 and integers of 1, 4 and 8 bytes, in place; NCCL adds in an order that is fixed for a
  // machine and its ranks.
  virtual void all_reduce(void* data, int64_t count, DType type, Reduce op, Stream& stream) = 0;
  // in [size * count], out [count].
  virtual void reduce_scatter(const void* in, void* out, int64_t count, DType type, Reduce op,
                              Stream& stream) = 0;
  virtual void all_gather(const void* in, void* out, int64_t bytes, Stream& stream) = 0;
  virtual void broadcast(void* data, int64_t bytes, int root, Stream& stream) = 0;
  // Piece r of `out` goes to rank r, piece r of `in` comes from there. The rank's own are copied.
  virtual void exchange(std::span<const Piece> out, std::span<const Piece> in, Stream& stream) = 0;
  // Done when the other rank has taken it.
  virtual void send(const void* data, int64_t bytes, int to, Stream& stream) = 0;
  virtual void receive(void* data, int64_t bytes, int from, Stream& stream) = 0;

  // Why NCCL has given up, in its words; empty: it has not. Any thread.
  virtual std::string failure() = 0;
  // What is queued ends at once, in whatever state. Any thread.
  virtual void abort() noexcept = 0;
};

// Throws Error where nobody is to wait any longer.
using Patience = std::function<void()>;

class Nccl {
 public:
  virtual ~Nccl() = default;
  virtual CommunicatorId make_id() const = 0;
  // Returns when all ranks have come. Each rank has a GPU of its own. The patience may be asked by
  // any thread that uses the communicator, and as long as that lives.
  virtual std::unique_ptr<Communicator> join(const CommunicatorId& id, int rank, int size,
                                             Device device, Patience patience) const = 0;
  // Unique to a GPU among those of its machine, whatever its index here.
  virtual int64_t place_of(Device device) const = 0;
  // out[i] = sources[0 * stride + i], sources[1 * stride + i], ... of `ranks`, combined in order in
  // f32 (f64 for f64, 64-bit integers for integers) and rounded once: the arithmetic of
  // comm/reduce.h, of all floating types and integers of 2 bytes. stride: elements. out may begin
  // where a source does.
  virtual void reduce(const void* sources, int64_t stride, int ranks, void* out, int64_t count,
                      DType type, Reduce op, Stream& stream) const = 0;
  // Copies that are done at once do not wait for this stream (device/cuda/waited.h).
  virtual void set_aside(Stream& stream) const = 0;
  // See CudaStream::on_wait().
  virtual void on_wait(Stream& stream, const void* key,
                       const std::function<void(bool ends)>& on_wait) const = 0;
};

// Of the open plugin; throws Error where there is none.
const Nccl& nccl();

}  // namespace megatron::comm
