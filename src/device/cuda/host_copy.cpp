#include "device/cuda/host_copy.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <deque>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "device/cuda/recording.h"
#include "device/cuda/runtime_call.h"

namespace megatron::cuda {
namespace {

struct Piece {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};

void queue(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

bool is_reached(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // clears the error: the result answers the question
    return false;
  }
  check(state, "cudaEventQuery");
  return true;
}

cudaMemoryType kind_of(const void* p) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, p), "cudaPointerGetAttributes");
  return attributes.type;
}

}  // namespace

void require_pinned(const void* to, const void* from) {
  for (const void* p : {to, from})
    MG_CHECK(kind_of(p) != cudaMemoryTypeUnregistered,
             "CUDA: a copy captured in a CUDA graph needs pinned host memory");
}

// A buffer is free or owned by a call. The GPU may still copy from or to a free one until its
// event.
class HostCopies::Ring {
 public:
  struct Buffer {
    std::byte* data = nullptr;
    cudaEvent_t used = nullptr;
    cudaStream_t stream = nullptr;  // stream that used it last
    bool free = true;
  };

  // A buffer owned by a call.
  class Taken {
   public:
    Taken(Ring& ring, Buffer* buffer) : ring_(&ring), buffer_(buffer) {}
    ~Taken() {
      if (buffer_ != nullptr) ring_->give_back(*buffer_);
    }
    Taken(Taken&& other) noexcept : ring_(other.ring_), buffer_(std::exchange(other.buffer_, {})) {}
    Taken& operator=(Taken&&) = delete;
    explicit operator bool() const { return buffer_ != nullptr; }
    std::byte* data() const { return buffer_->data; }
    void record(cudaStream_t stream) {
      buffer_->stream = stream;
      check(cudaEventRecord(buffer_->used, stream), "cudaEventRecord");
    }
    void wait() const { check(cudaEventSynchronize(buffer_->used), "the work before a copy"); }

   private:
    Ring* ring_;
    Buffer* buffer_;
  };

  // Null if the host cannot pin more memory.
  static std::unique_ptr<Ring> make() {
    auto ring = std::make_unique<Ring>();
    for (Buffer& buffer : ring->buffers_) {
      void* data = nullptr;
      const cudaError_t made = cudaHostAlloc(&data, kBuffer, cudaHostAllocPortable);
      buffer.data = static_cast<std::byte*>(data);
      if (made == cudaSuccess)
        check(cudaEventCreateWithFlags(&buffer.used, cudaEventDisableTiming),
              "cudaEventCreateWithFlags");
      if (made == cudaSuccess) continue;
      cudaGetLastError();
      log::warning(
          "cannot pin {} bytes of host memory ({}): unpinned memory is used instead, and copies "
          "are slower",
          kBuffers * kBuffer, cudaGetErrorString(made));
      return nullptr;
    }
    return ring;
  }

  ~Ring() {
    for (const Buffer& buffer : buffers_) {
      if (buffer.used != nullptr) cudaEventDestroy(buffer.used);
      cudaFreeHost(buffer.data);  // waits for copies in progress
    }
  }

  // Takes a free buffer that the GPU has finished with, or one last used by this stream, after
  // waiting for it. Buffers of other streams are not waited for: they may wait for another rank,
  // which may wait for this one.
  Taken take(cudaStream_t stream) {
    Buffer* found = nullptr;
    bool reached = false;
    {
      const std::lock_guard lock(mutex_);
      for (Buffer& buffer : buffers_) {
        if (!buffer.free || reached) continue;
        reached = is_reached(buffer.used);
        if (reached || (found == nullptr && buffer.stream == stream)) found = &buffer;
      }
      if (found != nullptr) found->free = false;
    }
    Taken taken(*this, found);
    if (taken && !reached) taken.wait();
    return taken;
  }

  void write(const Piece& piece, cudaStream_t stream) {
    Taken buffer = take(stream);
    if (!buffer) return queue(piece.to, piece.from, piece.bytes, stream);
    std::memcpy(buffer.data(), piece.from, piece.bytes);
    queue(piece.to, buffer.data(), piece.bytes, stream);
    buffer.record(stream);
  }

  // Two pieces are in flight at a time, which leaves buffers for other threads.
  void read(std::deque<std::pair<Piece, Taken>>& in_flight, const Piece& piece,
            cudaStream_t stream) {
    if (in_flight.size() == 2) finish(in_flight);
    Taken buffer = take(stream);
    if (!buffer) {
      queue(piece.to, piece.from, piece.bytes, stream);
      return check(cudaStreamSynchronize(stream), "the work before a copy");
    }
    queue(buffer.data(), piece.from, piece.bytes, stream);
    buffer.record(stream);
    in_flight.emplace_back(piece, std::move(buffer));
  }
  static void finish(std::deque<std::pair<Piece, Taken>>& in_flight) {
    const auto& [piece, buffer] = in_flight.front();
    buffer.wait();
    std::memcpy(piece.to, buffer.data(), piece.bytes);
    in_flight.pop_front();
  }

 private:
  void give_back(Buffer& buffer) {
    const std::lock_guard lock(mutex_);
    buffer.free = true;
  }

  std::mutex mutex_;
  std::array<Buffer, kBuffers> buffers_;
};

HostCopies::HostCopies(int devices)
    : rings_(static_cast<size_t>(devices)), refused_(static_cast<size_t>(devices)) {}
HostCopies::~HostCopies() = default;

HostCopies::Ring* HostCopies::ring(int device) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(device);
  std::unique_ptr<Ring>& ring = rings_[index];
  if (ring == nullptr && !refused_[index]) ring = Ring::make();
  refused_[index] = ring == nullptr;
  return ring.get();
}

bool HostCopies::copy(void* to, const void* from, int64_t bytes, int device, cudaStream_t stream) {
  if (bytes <= kSmall) return false;
  const cudaMemoryType target = kind_of(to), source = kind_of(from);
  const bool writes = target == cudaMemoryTypeDevice && source == cudaMemoryTypeUnregistered;
  const bool reads = source == cudaMemoryTypeDevice && target == cudaMemoryTypeUnregistered;
  if (!writes && !reads) return false;
  const MemoryWhileRecording allowed;  // for a recording of another stream of this thread
  Ring* const ring = this->ring(device);
  if (ring == nullptr) return false;
  std::deque<std::pair<Piece, Ring::Taken>> in_flight;
  for (int64_t at = 0; at < bytes; at += kBuffer) {
    const Piece piece{static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                      static_cast<size_t>(std::min(kBuffer, bytes - at))};
    if (writes) ring->write(piece, stream);
    else ring->read(in_flight, piece, stream);
  }
  while (!in_flight.empty()) Ring::finish(in_flight);
  return true;
}

}  // namespace megatron::cuda
