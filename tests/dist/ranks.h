// Ranks as threads, each with a runtime of its own, for tests.
#pragma once

#include <functional>

#include "comm/threads.h"
#include "device/stream.h"
#include "tensor/tensor.h"

namespace megatron::testing {

inline void each_rank(int ranks, DeviceKind device,
                      const std::function<void(comm::Group& world, Runtime& runtime)>& body) {
  comm::run_ranks(ranks, [&](comm::Group& world) {
    Runtime runtime({device, 0}, 1);
    body(world, runtime);
  });
}

inline void each_rank(int ranks,
                      const std::function<void(comm::Group& world, Runtime& runtime)>& body) {
  each_rank(ranks, DeviceKind::reference, body);
}

inline Tensor make(Runtime& runtime, Shape shape, DType type) {
  return Tensor::empty(runtime.arena(MemoryClass::activations), shape, type, "test");
}

inline Tensor make(Runtime& runtime, Shape shape, DType type, const std::vector<double>& values) {
  Tensor t = make(runtime, shape, type);
  copy_from(t, values);
  return t;
}

}  // namespace megatron::testing
