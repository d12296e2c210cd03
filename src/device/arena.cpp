#include "device/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/divide.h"
#include "base/error.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "device/cuda_plugin.h"

namespace megatron {
namespace {

constexpr int64_t kAlignment = 64;

constexpr int64_t kMinRange = int64_t{1} << 28;
constexpr int64_t kSmall = int64_t{4} << 20;  // bytes; whole pages

class HostRange final : public AddressRange {
 public:
  // ranks: number of ranks in this process, which share its address space.
  explicit HostRange(int ranks) {
    // Reserves only address space, as much as there is memory; a page uses memory when it is first
    // touched. The size is halved while the system limits address space.
    constexpr int64_t kAddressSpace = int64_t{1} << 46;  // half of a process's address space
    const int64_t share = kAddressSpace / kMemoryClasses / ranks;
    for (size_ = std::min(std::max(available_memory(), int64_t{1} << 30), share);
         size_ >= kMinRange; size_ /= 2) {
      void* p = mmap(nullptr, static_cast<size_t>(size_), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p != MAP_FAILED) {
        base_ = static_cast<std::byte*>(p);
        // Small arenas, of which there are many with many ranks, use small pages: each would
        // otherwise take a huge page, which no plan counts.
        madvise(base_ + kSmall, static_cast<size_t>(size_ - kSmall), MADV_HUGEPAGE);
        return;
      }
    }
    fail(
        "cannot reserve {} of address space ({}): the limit on address space (ulimit -v) or on "
        "memory mappings (sysctl vm.max_map_count) is too low for {} ranks in one process; raise "
        "it, or start fewer ranks per process (megatron launch)",
        format_bytes(static_cast<double>(kMinRange)), std::strerror(errno), ranks);
  }
  ~HostRange() override { munmap(base_, static_cast<size_t>(size_)); }
  std::byte* base() const override { return base_; }
  void grow(int64_t bytes) override {
    MG_CHECK(
        bytes <= size_,
        "an arena needs {} bytes, but only {} bytes of address space are available; raise ulimit "
        "-v",
        bytes, size_);
  }

 private:
  std::byte* base_ = nullptr;
  int64_t size_ = 0;
};

// Advice to the user about a full arena.
std::string_view suggestion(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::parameters:
    case MemoryClass::gradients:
      return "shard the model with --tensor-model-parallel-size, --pipeline-model-parallel-size "
             "or --data-parallel-sharding-strategy optim_grads_params";
    case MemoryClass::optimizer:
      return "shard the optimizer state with --use-distributed-optimizer, or keep it in host "
             "memory with --optimizer-cpu-offload";
    case MemoryClass::activations:
      return "use a smaller --micro-batch-size or --seq-length, or --recompute-granularity "
             "selective";
    case MemoryClass::scratch:
    case MemoryClass::communication: return "use a smaller --micro-batch-size or --seq-length";
    case MemoryClass::offload:
      return "offload less to host memory: --cpu-offloading-num-layers, "
             "--optimizer-offload-fraction";
  }
  MG_ASSERT(false);
}

class MetaRange final : public AddressRange {
 public:
  std::byte* base() const override { return nullptr; }
  void grow(int64_t) override {}
};

}  // namespace

std::unique_ptr<AddressRange> reserve_host_memory(int ranks) {
  return std::make_unique<HostRange>(ranks);
}
std::unique_ptr<AddressRange> reserve_no_memory() { return std::make_unique<MetaRange>(); }

std::string_view name(MemoryClass memory_class) {
  constexpr std::array<std::string_view, kMemoryClasses> kNames = {
      "parameters", "gradients", "optimizer", "activations", "scratch", "communication", "offload"};
  return kNames[static_cast<size_t>(memory_class)];
}

Storage::Storage(std::shared_ptr<Arena> arena, int64_t offset, int64_t bytes, std::byte* data,
                 bool owned)
    : arena_(std::move(arena)), offset_(offset), bytes_(bytes), data_(data), owned_(owned) {}

Storage::~Storage() {
  if (owned_ && bytes_ > 0) arena_->give_back(offset_, bytes_);
}

std::shared_ptr<Storage> Storage::unowned() const {
  return std::make_shared<Storage>(arena_, offset_, bytes_, data_, false);
}

Device Storage::device() const { return arena_->device(); }

MemoryClass Storage::memory_class() const { return arena_->memory_class(); }

std::shared_ptr<Arena> Arena::make(Device device, MemoryClass memory_class, int ranks) {
  std::unique_ptr<AddressRange> range;
  if (device.kind == DeviceKind::cuda && memory_class == MemoryClass::offload) {
    range = cuda_plugin().reserve_pinned();
    device = {DeviceKind::cpu, 0};
  } else if (device.kind == DeviceKind::cuda) {
    range = cuda_plugin().reserve(device);
  } else {
    range = device.is_host() ? reserve_host_memory(ranks) : reserve_no_memory();
  }
  return std::shared_ptr<Arena>(new Arena(device, memory_class, std::move(range)));
}

Arena::Arena(Device device, MemoryClass memory_class, std::unique_ptr<AddressRange> range)
    : device_(device), class_(memory_class), range_(std::move(range)) {}

std::shared_ptr<Storage> Arena::allocate(int64_t bytes, std::string_view label) {
  MG_ASSERT(bytes >= 0);
  if (bytes == 0) return std::make_shared<Storage>(shared_from_this(), 0, 0, nullptr);
  const int64_t offset = take(bytes, label);
  std::byte* data = range_->base() == nullptr ? nullptr : range_->base() + offset;
  return std::make_shared<Storage>(shared_from_this(), offset, bytes, data);
}

int64_t Arena::take(int64_t bytes, std::string_view label) {
  const int64_t size = round_up(bytes, kAlignment);
  const std::lock_guard lock(mutex_);
  int64_t offset = end_;
  const auto best = free_by_size_.lower_bound({size, 0});
  if (best != free_by_size_.end()) {
    const auto [free_bytes, free_offset] = *best;
    offset = free_offset;
    free_by_size_.erase(best);
    free_by_offset_.erase(free_offset);
    if (free_bytes > size) insert_free(free_offset + size, free_bytes - size);
  } else {
    // A free block at the end is extended instead of being left behind.
    const auto last =
        free_by_offset_.empty() ? free_by_offset_.end() : std::prev(free_by_offset_.end());
    const bool extends = last != free_by_offset_.end() && last->first + last->second == end_;
    if (extends) offset = last->first;
    MG_CHECK(offset + size <= limit_,
             "out of {} memory on {}: {} bytes for {} do not fit in addition to the {} bytes in "
             "use (limit {}); {}",
             name(class_), to_string(device_), bytes, label, in_use_, limit_, suggestion(class_));
    grow(offset + size, bytes, label);
    if (extends) {
      free_by_size_.erase({last->second, last->first});
      free_by_offset_.erase(last);
    }
    end_ = offset + size;
  }
  in_use_ += size;
  if (noted_) {
    int64_t& noted_end = (*noted_)[offset];
    noted_end = std::max(noted_end, offset + size);
  }
  if (listener_ != nullptr) listener_->taken(offset, size);
  return offset;
}

void Arena::grow(int64_t end, int64_t bytes, std::string_view label) {
  try {
    range_->grow(end);
  } catch (const Error& error) {
    fail(
        "out of {} memory on {}: {} bytes for {} do not fit in addition to the {} bytes in use "
        "({}); {}",
        name(class_), to_string(device_), bytes, label, in_use_, error.what(), suggestion(class_));
  }
}

void Arena::give_back(int64_t offset, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  int64_t size = round_up(bytes, kAlignment);
  in_use_ -= size;
  if (listener_ != nullptr) listener_->given_back(offset);
  auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.end() && next->first == offset + size) {
    size += next->second;
    free_by_size_.erase({next->second, next->first});
    next = free_by_offset_.erase(next);
  }
  if (next != free_by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      size += previous->second;
      free_by_size_.erase({previous->second, previous->first});
      free_by_offset_.erase(previous);
    }
  }
  insert_free(offset, size);
}

void Arena::insert_free(int64_t offset, int64_t bytes) {
  free_by_offset_[offset] = bytes;
  free_by_size_.insert({bytes, offset});
}

void Arena::listen(ArenaListener* listener) {
  const std::lock_guard lock(mutex_);
  listener_ = listener;
}

std::shared_ptr<Arena> Arena::copy() const {
  MG_ASSERT(device_.kind == DeviceKind::meta);
  std::shared_ptr<Arena> copy = make(device_, class_);
  const std::lock_guard lock(mutex_);
  copy->free_by_offset_ = free_by_offset_;
  copy->free_by_size_ = free_by_size_;
  copy->end_ = end_;
  copy->in_use_ = in_use_;
  return copy;
}

void Arena::note() {
  const std::lock_guard lock(mutex_);
  noted_.emplace();
}

std::vector<Arena::Extent> Arena::noted() {
  const std::lock_guard lock(mutex_);
  MG_ASSERT(noted_.has_value());
  std::vector<Extent> extents;
  for (const auto& [begin, end] : *noted_) {
    if (!extents.empty() && begin <= extents.back().end)
      extents.back().end = std::max(extents.back().end, end);
    else extents.push_back({begin, end});
  }
  noted_.reset();
  return extents;
}

bool Arena::is_free(std::span<const Extent> extents) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(extents, [&](const Extent& extent) {
    const auto next = free_by_offset_.upper_bound(extent.begin);
    if (next == free_by_offset_.begin()) return false;
    const auto [begin, bytes] = *std::prev(next);
    return begin + bytes >= extent.end;
  });
}

int64_t Arena::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

int64_t Arena::high_water() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

Arenas::Arenas(Device device, int ranks) {
  for (int i = 0; i < kMemoryClasses; ++i)
    arenas_[static_cast<size_t>(i)] = Arena::make(device, static_cast<MemoryClass>(i), ranks);
}

}  // namespace megatron
