// Memory by class. An arena allocates blocks of one reserved address range by best fit with
// coalescing, so the same sequence of requests gives the same offsets on any device: a meta run
// finds exactly the high-water mark of the real one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace megatron {

// offload: host memory for data that does not stay on the device. It is a separate class even if
// the device computes in host memory.
enum class MemoryClass {
  parameters,
  gradients,
  optimizer,
  activations,
  scratch,
  communication,
  offload
};
inline constexpr int kMemoryClasses = 7;
std::string_view name(MemoryClass memory_class);

class Arena;

// A block of device memory, returned to its arena when the last owner releases it. Has no pointer
// on meta.
class Storage {
 public:
  Storage(std::shared_ptr<Arena> arena, int64_t offset, int64_t bytes, std::byte* data,
          bool owned = true);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const;
  MemoryClass memory_class() const;
  // The same memory without ownership: its next owner may overwrite it.
  std::shared_ptr<Storage> unowned() const;

 private:
  std::shared_ptr<Arena> arena_;
  int64_t offset_, bytes_;
  std::byte* data_;
  bool owned_;
};

// Address range of an arena. Host memory is reserved, and committed on first use; meta has none;
// CUDA maps memory as the arena grows.
class AddressRange {
 public:
  virtual ~AddressRange() = default;
  virtual std::byte* base() const = 0;  // null on meta
  // Makes [0, bytes) usable. Throws Error, without any change, if the device has no more memory.
  virtual void grow(int64_t bytes) = 0;
};
std::unique_ptr<AddressRange> reserve_host_memory(int ranks);  // ranks in this process
std::unique_ptr<AddressRange> reserve_no_memory();             // meta

// Notified of an arena's blocks in the order in which they are allocated and released. Empty blocks
// are omitted.
class ArenaListener {
 public:
  virtual ~ArenaListener() = default;
  virtual void taken(int64_t offset, int64_t bytes) = 0;
  virtual void given_back(int64_t offset) = 0;
};

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // ranks: number of ranks in this process, which share its address space.
  static std::shared_ptr<Arena> make(Device device, MemoryClass memory_class, int ranks = 1);

  // Allocates a block aligned to 64 bytes, with undefined contents. Throws Error naming class,
  // bytes and label if there is no memory left. Zero bytes give a storage without a block.
  std::shared_ptr<Storage> allocate(int64_t bytes, std::string_view label);
  // The same without a Storage: returns the block's offset, which is passed to give_back() with its
  // bytes, above 0.
  int64_t take(int64_t bytes, std::string_view label);
  void give_back(int64_t offset, int64_t bytes);

  Device device() const { return device_; }
  MemoryClass memory_class() const { return class_; }
  int64_t in_use() const;                            // bytes allocated now
  int64_t high_water() const;                        // end of the highest block ever allocated
  void set_limit(int64_t bytes) { limit_ = bytes; }  // allocate() throws beyond it
  void listen(ArenaListener* listener);              // borrowed; null, the default: none
  // On meta: another arena with the same free blocks and high-water mark. Blocks currently
  // allocated here stay allocated there.
  std::shared_ptr<Arena> copy() const;

  // Memory of recorded work (device/recording.h). An arena's addresses stay valid, so recorded work
  // may be queued again as long as nothing else is kept there.
  struct Extent {
    int64_t begin = 0, end = 0;
    bool operator==(const Extent&) const = default;
  };
  // Records allocations from now on; noted() stops that and returns their extents, ascending, with
  // adjacent ones merged.
  void note();
  std::vector<Extent> noted();
  bool is_free(std::span<const Extent> extents) const;  // no part of them is allocated now

 private:
  Arena(Device device, MemoryClass memory_class, std::unique_ptr<AddressRange> range);
  void grow(int64_t end, int64_t bytes, std::string_view label);
  void insert_free(int64_t offset, int64_t bytes);

  Device device_;
  MemoryClass class_;
  std::unique_ptr<AddressRange> range_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> free_by_offset_;           // offset -> bytes
  std::set<std::pair<int64_t, int64_t>> free_by_size_;  // {bytes, offset}
  int64_t end_ = 0, in_use_ = 0, limit_ = INT64_MAX;
  std::optional<std::map<int64_t, int64_t>> noted_;  // begin -> end; some overlap
  ArenaListener* listener_ = nullptr;
};

// One arena per class; that of MemoryClass::offload is in host memory, pinned if the device is a
// GPU.
class Arenas {
 public:
  explicit Arenas(Device device, int ranks = 1);
  Arena& operator[](MemoryClass memory_class) const {
    return *arenas_[static_cast<size_t>(memory_class)];
  }
  // Installs another arena of the device for its class; `arena` becomes the previous one.
  void exchange(std::shared_ptr<Arena>& arena) {
    arena.swap(arenas_[static_cast<size_t>(arena->memory_class())]);
  }

 private:
  std::array<std::shared_ptr<Arena>, kMemoryClasses> arenas_;
};

}  // namespace megatron
