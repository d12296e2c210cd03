#include "device/cuda/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "base/divide.h"
#include "base/error.h"
#include "base/machine_limits.h"
#include "device/cuda/driver.h"
#include "device/cuda/recording.h"
#include "device/cuda/runtime_call.h"

namespace megatron::cuda {
namespace {

constexpr unsigned kSince = 10020;  // CUDA version that introduced these functions
// A range grows by this share of itself, up to this number of bytes and up to its share of the
// total for all ranges, so that mapping is rare and the memory mapped ahead is less than a plan
// reserves for CUDA.
constexpr int64_t kGrowth = 8, kLargestStep = int64_t{64} << 20, kAhead = 7 * kLargestStep;

// Virtual memory management functions of the driver.
struct Driver {
  template <class... Parameters>
  using Call = CUresult (*)(Parameters...);
  template <class... Parameters>
  static void find(Call<Parameters...>& call, const char* name) {
    call = driver_function<CUresult(Parameters...)>(name, kSince);
  }
  Driver() {
    find(granularity, "cuMemGetAllocationGranularity");
    find(reserve, "cuMemAddressReserve");
    find(free, "cuMemAddressFree");
    find(create, "cuMemCreate");
    find(release, "cuMemRelease");
    find(map, "cuMemMap");
    find(set_access, "cuMemSetAccess");
    find(unmap, "cuMemUnmap");
  }
  Call<size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags> granularity;
  Call<CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long> reserve;
  Call<CUdeviceptr, size_t> free;
  Call<CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long>
      create;
  Call<CUmemGenericAllocationHandle> release;
  Call<CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long> map;
  Call<CUdeviceptr, size_t, const CUmemAccessDesc*, size_t> set_access;
  Call<CUdeviceptr, size_t> unmap;
};

class DeviceRange final : public AddressRange {
 public:
  DeviceRange(int device, std::shared_ptr<RecordingGate> gate, std::shared_ptr<RangeCount> ranges)
      : device_(device), gate_(std::move(gate)), ranges_(std::move(ranges)) {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties_.location.id = device;
    size_t unit = 0, free = 0, total = 0;
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    check(driver_.granularity(&unit, &properties_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
          "cuMemGetAllocationGranularity");
    unit_ = static_cast<int64_t>(unit);
    size_ = round_up(static_cast<int64_t>(total), unit_);
    check(driver_.reserve(&base_, static_cast<size_t>(size_), 0, 0, 0), "cuMemAddressReserve");
    ++*ranges_;
  }

  ~DeviceRange() override {
    const auto waiting = gate_->wait_for_device();
    cudaSetDevice(device_);
    cudaDeviceSynchronize();
    int64_t at = 0;
    for (const int64_t bytes : pieces_) {
      driver_.unmap(base_ + static_cast<CUdeviceptr>(at), static_cast<size_t>(bytes));
      at += bytes;
    }
    driver_.free(base_, static_cast<size_t>(size_));
    --*ranges_;
  }

  std::byte* base() const override { return reinterpret_cast<std::byte*>(base_); }

  void grow(int64_t bytes) override {
    if (bytes <= mapped_) return;
    const MemoryWhileRecording allowed;
    check(cudaSetDevice(device_), "cudaSetDevice");
    const int64_t needed = round_up(bytes - mapped_, unit_);
    const int64_t ahead =
        round_up(std::min({mapped_ / kGrowth, kLargestStep, kAhead / *ranges_}), unit_);
    if (mapped_ + std::max(needed, ahead) <= size_ && add(std::max(needed, ahead))) return;
    if (ahead > needed && mapped_ + needed <= size_ && add(needed)) return;
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    fail("the GPU has {} of {} bytes free", free, total);
  }

 private:
  // Returns false, without any change, if the device has no more memory.
  bool add(int64_t bytes) {
    const auto size = static_cast<size_t>(bytes);
    const CUdeviceptr at = base_ + static_cast<CUdeviceptr>(mapped_);
    CUmemGenericAllocationHandle memory{};
    const CUresult made = driver_.create(&memory, size, &properties_, 0);
    if (made == CUDA_ERROR_OUT_OF_MEMORY) return false;
    check(made, "cuMemCreate");
    const CUresult placed = driver_.map(at, size, 0, memory, 0);
    driver_.release(memory);  // mapped memory exists until it is unmapped
    if (placed == CUDA_ERROR_OUT_OF_MEMORY) return false;
    check(placed, "cuMemMap");
    CUmemAccessDesc access{};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const CUresult opened = driver_.set_access(at, size, &access, 1);
    if (opened != CUDA_SUCCESS) driver_.unmap(at, size);
    if (opened == CUDA_ERROR_OUT_OF_MEMORY) return false;
    check(opened, "cuMemSetAccess");
    pieces_.push_back(bytes);
    mapped_ += bytes;
    return true;
  }

  Driver driver_;
  int device_;
  std::shared_ptr<RecordingGate> gate_;
  std::shared_ptr<RangeCount> ranges_;
  CUmemAllocationProp properties_{};
  CUdeviceptr base_ = 0;
  int64_t size_ = 0, unit_ = 0, mapped_ = 0;
  std::vector<int64_t> pieces_;  // bytes of each, in address order
};

class PinnedRange final : public AddressRange {
 public:
  explicit PinnedRange(std::vector<std::shared_ptr<RecordingGate>> gates)
      : gates_(std::move(gates)), size_(round_up(available_memory(), kPinnedPiece)) {
    check(cudaGetDevice(&device_), "cudaGetDevice");
    space_ = mmap(nullptr, static_cast<size_t>(size_ + kPinnedPiece), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MG_CHECK(space_ != MAP_FAILED,
             "cannot reserve {} bytes of address space for pinned host memory; raise ulimit -v",
             size_);
    base_ = reinterpret_cast<std::byte*>(
        round_up(static_cast<int64_t>(reinterpret_cast<intptr_t>(space_)), kPinnedPiece));
  }

  ~PinnedRange() override {
    const auto waiting = gates_[static_cast<size_t>(device_)]->wait_for_device();
    cudaSetDevice(device_);
    cudaDeviceSynchronize();
    for (int64_t at = 0; at < pinned_; at += kPinnedPiece) cudaHostUnregister(base_ + at);
    munmap(space_, static_cast<size_t>(size_ + kPinnedPiece));
  }

  std::byte* base() const override { return base_; }

  void grow(int64_t bytes) override {
    const int64_t before = pinned_;
    const MemoryWhileRecording allowed;
    for (; pinned_ < bytes; pinned_ += kPinnedPiece) {
      const cudaError_t result =
          pinned_ + kPinnedPiece > size_
              ? cudaErrorMemoryAllocation
              : cudaHostRegister(base_ + pinned_, kPinnedPiece,
                                 cudaHostRegisterPortable | cudaHostRegisterMapped);
      if (result == cudaSuccess) continue;
      cudaGetLastError();
      const int64_t reached = pinned_;
      while (pinned_ > before) cudaHostUnregister(base_ + (pinned_ -= kPinnedPiece));
      fail(
          "only {} of {} bytes of host memory could be pinned ({}); the host has {} bytes of "
          "memory",
          reached, bytes, cudaGetErrorString(result), available_memory());
    }
  }

 private:
  std::vector<std::shared_ptr<RecordingGate>> gates_;
  int device_ = 0;
  void* space_ = nullptr;
  std::byte* base_ = nullptr;
  int64_t size_ = 0, pinned_ = 0;
};

}  // namespace

std::unique_ptr<AddressRange> reserve_device_memory(int device, std::shared_ptr<RecordingGate> gate,
                                                    std::shared_ptr<RangeCount> ranges) {
  return std::make_unique<DeviceRange>(device, std::move(gate), std::move(ranges));
}
std::unique_ptr<AddressRange> reserve_pinned_memory(
    std::vector<std::shared_ptr<RecordingGate>> gates) {
  return std::make_unique<PinnedRange>(std::move(gates));
}

}  // namespace megatron::cuda
