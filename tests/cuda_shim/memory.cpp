// Device memory, pinned memory and copies. Device addresses are never reused.
#include "memory.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <cstring>

#include "machine.h"

namespace cuda_shim {

uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }
void* pointer(uintptr_t at) { return reinterpret_cast<void*>(at); }

size_t free_memory(int device) {
  const auto all = static_cast<size_t>(machine().settings.memory);
  return all - std::min(all, machine().used[device]);
}

uintptr_t reserve_addresses(size_t bytes, size_t alignment) {
  void* const p = mmap(nullptr, bytes + alignment, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return 0;
  const uintptr_t at = (address(p) + alignment - 1) / alignment * alignment;
  machine().device_addresses[at] = bytes;
  return at;
}

void open_pages(uintptr_t at, size_t bytes) {
  mprotect(pointer(at), bytes, PROT_READ | PROT_WRITE);
  std::memset(pointer(at), 0xff, bytes);
}
// Maps the pages again, so that the system merges all closed pages into one mapping.
void close_pages(uintptr_t at, size_t bytes) {
  mmap(pointer(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
       0);
}

namespace {

// Returns the entry that contains an address, or end() if there is none.
template <class Map>
auto holding(Map& map, uintptr_t at) {
  auto entry = map.upper_bound(at);
  return entry == map.begin() ? map.end() : std::prev(entry);
}

// True if the host may pin so many more bytes.
bool may_pin(size_t bytes) {
  return shim_alive("pinned") + static_cast<int64_t>(bytes) <= machine().settings.pinned &&
         may_allocate();
}

bool of_device(uintptr_t at) {
  const auto entry = holding(machine().device_addresses, at);
  return entry != machine().device_addresses.end() && at - entry->first < entry->second;
}

// True if all bytes are live device memory.
bool alive(uintptr_t at, size_t bytes) {
  Machine& m = machine();
  const uintptr_t end = at + bytes;
  while (at < end) {
    const auto entry = holding(m.device_memory, at);
    if (entry == m.device_memory.end() || at - entry->first >= entry->second.bytes ||
        !entry->second.accessible)
      return false;
    at = entry->first + entry->second.bytes;
  }
  return true;
}

enum class Place { device, pinned, pageable, dead, across };

Place place_of(const void* p, size_t bytes) {
  const uintptr_t at = address(p);
  if (of_device(at) || of_device(at + bytes - 1))
    return alive(at, bytes) ? Place::device : Place::dead;
  Machine& m = machine();
  const auto first = holding(m.pinned, at), last = holding(m.pinned, at + bytes - 1);
  const auto in = [&](const auto& entry, uintptr_t byte) {
    return entry != m.pinned.end() && byte - entry->first < entry->second.bytes;
  };
  if (!in(first, at) && !in(last, at + bytes - 1)) return Place::pageable;
  return first == last && in(first, at) && in(last, at + bytes - 1) ? Place::pinned : Place::across;
}

// Returns an empty string or the fault at one end of a copy.
std::string fault(const char* call, const char* end, const void* p, size_t bytes) {
  switch (place_of(p, bytes)) {
    case Place::dead:
      return fmt::format("{}: {} {} bytes at {} are not all device memory that is allocated", call,
                         end, bytes, p);
    case Place::across:
      return fmt::format("{}: {} {} bytes at {} go across the border of pinned host memory", call,
                         end, bytes, p);
    default: return "";
  }
}

bool fits(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    case cudaMemcpyDefault: return true;
  }
  return false;
}

// Checks the addresses again when it runs, to report memory freed meanwhile.
cudaError_t copy_bytes(void* to, const void* from, size_t bytes) {
  for (const std::string& text : {fault("a copy that was queued", "to", to, bytes),
                                  fault("a copy that was queued", "from", from, bytes)}) {
    if (!text.empty()) return stick(cudaErrorIllegalAddress, text);
  }
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

}  // namespace

bool is_device_memory(const void* p, size_t bytes) {
  const Lock lock(machine().mutex);
  return of_device(address(p)) && alive(address(p), bytes);
}

// Called while a kernel runs: the thread that waits for it holds the lock, so nothing changes.
std::string explain_address(const void* p) {
  if (alive(address(p), 1)) return "device memory that is allocated";
  if (of_device(address(p))) return "device memory that is not allocated";
  return "no memory of the device";
}

}  // namespace cuda_shim

using namespace cuda_shim;

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Lock lock(machine().mutex);
  if (!has_devices()) return cudaErrorNoDevice;
  *total = static_cast<size_t>(machine().settings.memory);
  *free = free_memory(current_device());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (const cudaError_t error = refuse_while_recording("cudaMalloc"); error != cudaSuccess)
    return error;
  *p = nullptr;
  if (!has_devices()) return cudaErrorNoDevice;
  if (bytes == 0) return cudaSuccess;
  if (bytes > free_memory(current_device()) || !may_allocate()) return cudaErrorMemoryAllocation;
  const size_t pages = (bytes + 4095) / 4096 * 4096;
  const uintptr_t at = reserve_addresses(pages, 4096);
  if (at == 0) return cudaErrorMemoryAllocation;
  open_pages(at, pages);
  m.device_memory[at] = {.bytes = bytes, .device = current_device()};
  m.used[current_device()] += bytes;
  *p = pointer(at);
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (const cudaError_t error = refuse_while_recording("cudaFree"); error != cudaSuccess)
    return error;
  if (p == nullptr) return cudaSuccess;
  const auto entry = m.device_memory.find(address(p));
  if (entry == m.device_memory.end() || entry->second.handle != 0)
    return refuse(cudaErrorInvalidValue,
                  fmt::format("cudaFree: {} is not allocated, or was freed before", p));
  run_all(entry->second.device);
  m.used[entry->second.device] -= entry->second.bytes;
  close_pages(entry->first, (entry->second.bytes + 4095) / 4096 * 4096);
  m.device_memory.erase(entry);
  return m.sticky;
}

cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (const cudaError_t error = refuse_while_recording("cudaHostAlloc"); error != cudaSuccess)
    return error;
  if (!has_devices()) return cudaErrorNoDevice;
  if (!may_pin(bytes)) return cudaErrorMemoryAllocation;
  *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*p == MAP_FAILED) return cudaErrorMemoryAllocation;
  m.pinned[address(*p)] = {.bytes = bytes, .device = -1};
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (const cudaError_t error = refuse_while_recording("cudaFreeHost"); error != cudaSuccess)
    return error;
  if (p == nullptr) return cudaSuccess;
  const auto entry = m.pinned.find(address(p));
  if (entry == m.pinned.end() || entry->second.device != -1)
    return refuse(cudaErrorInvalidValue, fmt::format("cudaFreeHost: {} is not allocated", p));
  run_all(current_device());
  munmap(p, entry->second.bytes);
  m.pinned.erase(entry);
  return m.sticky;
}

cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned flags) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (const cudaError_t error = refuse_while_recording("cudaHostRegister"); error != cudaSuccess)
    return error;
  if (!has_devices()) return cudaErrorNoDevice;
  if (bytes == 0 || p == nullptr) return refuse(cudaErrorInvalidValue, "cudaHostRegister: nothing");
  if (place_of(p, bytes) != Place::pageable)
    return refuse(cudaErrorHostMemoryAlreadyRegistered,
                  fmt::format("cudaHostRegister: {} is pinned already", p));
  if (flags != (cudaHostRegisterPortable | cudaHostRegisterMapped))
    problem("cudaHostRegister: kernels, and other devices, are not promised this memory");
  if (!may_pin(bytes)) return cudaErrorMemoryAllocation;
  m.pinned[address(p)] = {.bytes = bytes};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (const cudaError_t error = refuse_while_recording("cudaHostUnregister"); error != cudaSuccess)
    return error;
  const auto entry = m.pinned.find(address(p));
  if (entry == m.pinned.end() || entry->second.device == -1)
    return refuse(cudaErrorHostMemoryNotRegistered,
                  fmt::format("cudaHostUnregister: {} is not registered", p));
  m.pinned.erase(entry);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  const Lock lock(machine().mutex);
  if (!has_devices()) return cudaErrorNoDevice;
  const Place place = place_of(p, 1);
  const bool device = place == Place::device, host = place == Place::pinned;
  *attributes = {};
  attributes->type = device ? cudaMemoryTypeDevice
                     : host ? cudaMemoryTypeHost
                            : cudaMemoryTypeUnregistered;
  attributes->device = device || host ? current_device() : -1;
  if (device || host) attributes->devicePointer = const_cast<void*>(p);
  if (!device) attributes->hostPointer = const_cast<void*>(p);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Lock lock(machine().mutex);
  if (bytes == 0) return cudaSuccess;
  for (const std::string& text :
       {fault("cudaMemcpyAsync", "to", to, bytes), fault("cudaMemcpyAsync", "from", from, bytes)}) {
    if (!text.empty()) return refuse(cudaErrorInvalidValue, text);
  }
  const Place target = place_of(to, bytes), source = place_of(from, bytes);
  if (!fits(kind, target == Place::device, source == Place::device))
    return refuse(cudaErrorInvalidMemcpyDirection,
                  "cudaMemcpyAsync: the pointers are not of that direction");
  const bool pageable = source == Place::pageable || target == Place::pageable;
  if (pageable) machine().pageable_bytes += static_cast<int64_t>(bytes);
  if (source == Place::device && target != Place::device) {
    machine().to_host_bytes += static_cast<int64_t>(bytes);
    ++machine().to_host_copies;
  }
  if (source != Place::pageable)
    return queue_copy(stream, "copy", [=] { return copy_bytes(to, from, bytes); });
  if (const cudaError_t error =
          refuse_recording_stream("a copy from pageable memory", stream_of(stream));
      error != cudaSuccess)
    return error;
  // Reads pageable memory before the call returns.
  const auto* const begin = static_cast<const std::byte*>(from);
  return queue_copy(stream, "copy", [to, staged = std::vector<std::byte>(begin, begin + bytes)] {
    return copy_bytes(to, staged.data(), staged.size());
  });
}

// Runs on the legacy stream: after the work of blocking streams, but not of non-blocking streams.
// From pageable memory it returns when the bytes have been read, before they are on the device.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (const cudaError_t error = refuse_while_recording("cudaMemcpy"); error != cudaSuccess)
    return error;
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  if (error != cudaSuccess || bytes == 0) return error;
  if (place_of(to, bytes) == Place::device) return m.sticky;
  return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  const Lock lock(machine().mutex);
  if (bytes == 0) return cudaSuccess;
  if (!is_device_memory(p, bytes))
    return refuse(cudaErrorInvalidValue,
                  fmt::format("cudaMemsetAsync: {} bytes at {} are not all device memory that is "
                              "allocated",
                              bytes, p));
  return queue_copy(stream, "memset", [=] {
    if (!is_device_memory(p, bytes))
      return stick(cudaErrorIllegalAddress,
                   fmt::format("a memset that was queued: {} bytes at {} were freed", bytes, p));
    std::memset(p, value, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  return cudaMemsetAsync(p, value, bytes, nullptr);
}
