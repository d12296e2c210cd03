// The driver's virtual memory management, with its functions found by name.
#include <cuda.h>
#include <fmt/core.h>

#include "machine.h"
#include "memory.h"

namespace cuda_shim {
namespace {

constexpr size_t kGranule = 2 << 20;

CUresult no(CUresult error, const std::string& text) {
  problem(text);
  return error;
}

// Returns the driver's error if the thread is recording work.
CUresult unless_recording(const char* call) {
  const bool recording = refuse_while_recording(call) != cudaSuccess;
  return recording ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult get_granularity(size_t* bytes, const CUmemAllocationProp* p,
                         CUmemAllocationGranularity_flags) {
  if (p->type != CU_MEM_ALLOCATION_TYPE_PINNED || p->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return no(CUDA_ERROR_INVALID_VALUE, "cuMemGetAllocationGranularity: not memory of a device");
  *bytes = kGranule;
  return CUDA_SUCCESS;
}

CUresult reserve(CUdeviceptr* p, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long) {
  const Lock lock(machine().mutex);
  if (bytes == 0 || bytes % kGranule != 0)
    return no(CUDA_ERROR_INVALID_VALUE, "cuMemAddressReserve: not whole granules");
  *p = reserve_addresses(bytes, std::max(alignment, kGranule));
  return *p == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult free_addresses(CUdeviceptr p, size_t bytes) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  const auto entry = m.device_addresses.find(p);
  if (entry == m.device_addresses.end() || entry->second != bytes)
    return no(CUDA_ERROR_INVALID_VALUE, "cuMemAddressFree: not what was reserved");
  const auto mapped = m.device_memory.lower_bound(p);
  if (mapped != m.device_memory.end() && mapped->first < p + bytes)
    return no(CUDA_ERROR_INVALID_VALUE, "cuMemAddressFree: memory is still mapped there");
  return CUDA_SUCCESS;
}

CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* p,
                unsigned long long) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (const CUresult error = unless_recording("cuMemCreate"); error != CUDA_SUCCESS) return error;
  if (bytes == 0 || bytes % kGranule != 0 || p->location.id < 0 || p->location.id >= kMaxDevices)
    return no(CUDA_ERROR_INVALID_VALUE, "cuMemCreate: not whole granules of a device");
  if (bytes > free_memory(p->location.id) || !may_allocate()) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = m.next_handle++;
  m.physical[*handle] = {bytes, p->location.id};
  m.references[*handle] = 1;
  m.used[p->location.id] += bytes;
  return CUDA_SUCCESS;
}

void drop(uint64_t handle) {
  Machine& m = machine();
  if (--m.references[handle] > 0) return;
  const auto [bytes, device] = m.physical[handle];
  m.used[device] -= bytes;
  m.physical.erase(handle);
  m.references.erase(handle);
}

CUresult release(CUmemGenericAllocationHandle handle) {
  const Lock lock(machine().mutex);
  if (!machine().physical.contains(handle))
    return no(CUDA_ERROR_INVALID_VALUE, "cuMemRelease: no such memory");
  drop(handle);
  return CUDA_SUCCESS;
}

CUresult map(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (const CUresult error = unless_recording("cuMemMap"); error != CUDA_SUCCESS) return error;
  const auto memory = m.physical.find(handle);
  if (memory == m.physical.end() || offset != 0 || memory->second.first != bytes)
    return no(CUDA_ERROR_INVALID_VALUE, "cuMemMap: not the whole of memory that was created");
  const auto space = m.device_addresses.upper_bound(p);
  if (space == m.device_addresses.begin() ||
      p + bytes > std::prev(space)->first + std::prev(space)->second)
    return no(CUDA_ERROR_INVALID_VALUE, "cuMemMap: addresses that are not reserved");
  const auto next = m.device_memory.lower_bound(p);
  if ((next != m.device_memory.end() && next->first < p + bytes) ||
      (next != m.device_memory.begin() &&
       std::prev(next)->first + std::prev(next)->second.bytes > p))
    return no(CUDA_ERROR_INVALID_VALUE, "cuMemMap: memory is mapped there already");
  m.device_memory[p] = {
      .bytes = bytes, .device = memory->second.second, .handle = handle, .accessible = false};
  ++m.references[handle];
  return CUDA_SUCCESS;
}

// Visits the complete mappings in [p, p + bytes).
template <class F>
CUresult each_mapping(CUdeviceptr p, size_t bytes, const char* call, F&& f) {
  Machine& m = machine();
  const CUdeviceptr end = p + bytes;
  while (p < end) {
    const auto entry = m.device_memory.find(p);
    if (entry == m.device_memory.end() || entry->second.handle == 0 ||
        p + entry->second.bytes > end)
      return no(CUDA_ERROR_INVALID_VALUE, fmt::format("{}: not what was mapped", call));
    p += entry->second.bytes;
    f(entry);
  }
  return CUDA_SUCCESS;
}

CUresult set_access(CUdeviceptr p, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  const Lock lock(machine().mutex);
  if (const CUresult error = unless_recording("cuMemSetAccess"); error != CUDA_SUCCESS)
    return error;
  if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    return no(CUDA_ERROR_INVALID_VALUE, "cuMemSetAccess: one device reads and writes here");
  return each_mapping(p, bytes, "cuMemSetAccess", [](const auto& entry) {
    if (!entry->second.accessible) open_pages(entry->first, entry->second.bytes);
    entry->second.accessible = true;
  });
}

CUresult unmap(CUdeviceptr p, size_t bytes) {
  const Lock lock(machine().mutex);
  if (const CUresult error = unless_recording("cuMemUnmap"); error != CUDA_SUCCESS) return error;
  return each_mapping(p, bytes, "cuMemUnmap", [](const auto& entry) {
    close_pages(entry->first, entry->second.bytes);
    drop(entry->second.handle);
    machine().device_memory.erase(entry);
  });
}

CUresult error_name(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS               ? "CUDA_SUCCESS"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
                                              : "CUDA_ERROR_UNKNOWN";
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS               ? "no error"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
          : error == CUDA_ERROR_INVALID_VALUE ? "invalid argument"
                                              : "unknown error";
  return CUDA_SUCCESS;
}

struct Function {
  const char* name;
  void* at;
};
template <class F>
void* any(F* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace
}  // namespace cuda_shim

using namespace cuda_shim;

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const Function functions[] = {
      {"cuMemGetAllocationGranularity", any(get_granularity)},
      {"cuMemAddressReserve", any(reserve)},
      {"cuMemAddressFree", any(free_addresses)},
      {"cuMemCreate", any(create)},
      {"cuMemRelease", any(release)},
      {"cuMemMap", any(map)},
      {"cuMemSetAccess", any(set_access)},
      {"cuMemUnmap", any(unmap)},
      {"cuGetErrorName", any(error_name)},
      {"cuGetErrorString", any(error_string)},
  };
  *function = nullptr;
  for (const Function& f : functions) {
    if (std::string_view(f.name) == symbol) *function = f.at;
  }
  if (result != nullptr)
    *result =
        *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function != nullptr ? cudaSuccess : cudaErrorSymbolNotFound;
}
