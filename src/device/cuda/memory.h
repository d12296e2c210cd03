// Address ranges of a GPU's arenas.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/arena.h"
#include "device/cuda/gate.h"

namespace megatron::cuda {

// Number of existing address ranges of one device.
using RangeCount = std::atomic<int>;

// Reserves addresses for as many bytes as the device has; memory is mapped to them, in pieces of 2
// MiB or more, as the range grows. Destruction waits for the device's work.
std::unique_ptr<AddressRange> reserve_device_memory(int device, std::shared_ptr<RecordingGate> gate,
                                                    std::shared_ptr<RangeCount> ranges);

// Reserves addresses for as many bytes as the host has; memory is pinned in pieces of kPinnedPiece
// as the range grows. Destruction waits for the work of the GPU that was current. gates: of all
// devices.
std::unique_ptr<AddressRange> reserve_pinned_memory(
    std::vector<std::shared_ptr<RecordingGate>> gates);

// Size of a piece of pinned memory. A copy must not cross its boundaries, which are multiples of
// this.
inline constexpr int64_t kPinnedPiece = int64_t{64} << 20;

}  // namespace megatron::cuda
