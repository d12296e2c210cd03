// Runs tests on ranks, each with its own runtime. Ranks are threads, or the processes that a
// launcher started the test program as (dist/launch.h).
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "comm/processes.h"
#include "comm/threads.h"
#include "device/stream.h"
#include "hang_limit.h"
#include "tensor/tensor.h"

namespace megatron::testing {

// Processes of a test program that can be launched. Null in other programs.
inline comm::Processes*& processes() {
  static comm::Processes* of_program = nullptr;
  return of_program;
}

inline void pause(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

inline void run_ranks(int ranks, const std::function<void(comm::Group& world)>& body) {
  if (processes() != nullptr) return processes()->run(ranks, body, kHangSeconds);
  comm::run_ranks(ranks, body, kHangSeconds);
}

inline void each_rank(int ranks, DeviceKind device,
                      const std::function<void(comm::Group& world, Runtime& runtime)>& body) {
  run_ranks(ranks, [&](comm::Group& world) {
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
