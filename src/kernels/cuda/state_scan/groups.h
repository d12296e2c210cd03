// Blocks of threads that process some heads of a group in a chunk.
#pragma once

#include "kernels/cuda/state_scan/call.h"

namespace megatron::kernels::cuda {

// The part of a group's heads, and the chunk, of this block of threads.
struct HeadsOfChunk {
  template <class T>
  __device__ explicit HeadsOfChunk(const ScanCall<T>& call) {
    int64_t index = blockIdx.x;
    chunk = static_cast<int>(index % call.chunks);
    index /= call.chunks;
    part = static_cast<int>(index % call.parts);
    index /= call.parts;
    group = static_cast<int>(index % call.groups);
    sequence = index / call.groups;
    constexpr int kHeads = static_cast<int>(kScanHeads);
    first_head = group * call.group_heads() + part * kHeads;
    end_head = min(first_head + kHeads, (group + 1) * call.group_heads());
  }
  int chunk, part, group, first_head, end_head;
  int64_t sequence;
};

}  // namespace megatron::kernels::cuda
