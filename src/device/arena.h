// Memory by class. An arena hands out blocks of one reserved address range by best fit with
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

// offload: memory of the host, for what does not stay on the device. A device that computes in host
// memory has it apart.
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

// A block of device memory; given back to its arena when the last owner lets go. No pointer on
// meta.
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
  // The same memory, without owning it: whoever gets it next may overwrite it.
  std::shared_ptr<Storage> unowned() const;

 private:
  std::shared_ptr<Arena> arena_;
  int64_t offset_, bytes_;
  std::byte* data_;
  bool owned_;
};

// Where an arena's addresses come from. Host memory is reserved and touched by use; meta has none;
// CUDA maps on growth.
class AddressRange {
 public:
  virtual ~AddressRange() = default;
  virtual std::byte* base() const = 0;  // null on meta
  // Makes [0, bytes) usable. Throws Error, with nothing changed, when the device has no more.
  virtual void grow(int64_t bytes) = 0;
};
std::unique_ptr<AddressRange> reserve_host_memory(int ranks);  // of this process
std::unique_ptr<AddressRange> reserve_no_memory();             // meta

// Called with an arena's blocks, in the order in which they are handed out and given back. Empty ones
// are left out.
class ArenaListener {
 public:
  virtual ~ArenaListener() = default;
  virtual void taken(int64_t offset, int64_t bytes) = 0;
  virtual void given_back(int64_t offset) = 0;
};

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // ranks: of this process, which share its address space.
  static std::shared_ptr<Arena> make(Device device, MemoryClass memory_class, int ranks = 1);

  // A block aligned to 64 bytes; its contents are undefined. Throws Error naming class, bytes and
  // label when there is no memory left. Zero bytes give a storage without block.
  std::shared_ptr<Storage> allocate(int64_t bytes, std::string_view label);
  // The same without a Storage: the block's offset, which goes to give_back() with its bytes, above
  // 0.
  int64_t take(int64_t bytes, std::string_view label);
  void give_back(int64_t offset, int64_t bytes);

  Device device() const { return device_; }
  MemoryClass memory_class() const { return class_; }
  int64_t in_use() const;                            // bytes handed out now
  int64_t high_water() const;                        // end of the highest block ever handed out
  void set_limit(int64_t bytes) { limit_ = bytes; }  // allocate throws beyond it
  void listen(ArenaListener* listener);              // borrowed; null: nobody, the default
  // On meta: another arena with the same free blocks and high-water mark. What this one has handed
  // out now stays taken there.
  std::shared_ptr<Arena> copy() const;

  // Where recorded work has its memory (device/recording.h). Addresses of an arena stay usable, so
  // that such work may be queued again as long as nobody else keeps something there.
  struct Extent {
    int64_t begin = 0, end = 0;
    bool operator==(const Extent&) const = default;
  };
  // From now on, what is handed out is noted; noted() ends that and gives it, ascending and joined
  // where it touches.
  void note();
  std::vector<Extent> noted();
  bool is_free(std::span<const Extent> extents) const;  // nothing of them is handed out now

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

// One arena a class; that of MemoryClass::offload is of host memory, pinned where the device is a
// GPU.
class Arenas {
 public:
  explicit Arenas(Device device, int ranks = 1);
  Arena& operator[](MemoryClass memory_class) const {
    return *arenas_[static_cast<size_t>(memory_class)];
  }
  // From now on another arena of the device is that of its class; `arena` becomes the one before.
  void exchange(std::shared_ptr<Arena>& arena) {
    arena.swap(arenas_[static_cast<size_t>(arena->memory_class())]);
  }

 private:
  std::array<std::shared_ptr<Arena>, kMemoryClasses> arenas_;
};

}  // namespace megatron
