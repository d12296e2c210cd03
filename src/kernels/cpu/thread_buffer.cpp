#include "kernels/cpu/thread_buffer.h"

#include <array>
#include <memory>

namespace megatron::kernels::cpu {

namespace {

struct Buffer {
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte, Free> data;
  int64_t bytes = 0;
};

}  // namespace

std::byte* thread_buffer(Slot slot, int64_t bytes) {
  thread_local std::array<Buffer, static_cast<size_t>(Slot::count)> buffers;
  Buffer& buffer = buffers[static_cast<size_t>(slot)];
  if (buffer.bytes < bytes || buffer.data == nullptr) {
    const int64_t size = (bytes + 4095) / 4096 * 4096 + 4096;
    buffer.data.reset();
    buffer.data.reset(
        static_cast<std::byte*>(::operator new(static_cast<size_t>(size), std::align_val_t{64})));
    buffer.bytes = size;
  }
  return buffer.data.get();
}

}  // namespace megatron::kernels::cpu
