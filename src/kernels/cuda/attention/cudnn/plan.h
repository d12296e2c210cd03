// A graph compiled for a device.
#pragma once

#include <map>
#include <memory>

#include "kernels/cuda/attention/cudnn/graph.h"

namespace megatron::kernels::cuda::cudnn {

// The target of a plan: a library handle's device or, for plans that are only examined, a
// description of a device (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, since cuDNN 9.8).
struct Target {
  cudnnHandle_t library = nullptr;
  const Descriptor* device = nullptr;
};

// Bytes of workspace that a plan may use, and whether its results may differ between runs.
struct Limits {
  int64_t least = 0, most = 0;
  bool any_order = false;
};

class Plan {
 public:
  // Returns the first of cuDNN's plans for the graph, in order of expected speed, that is within
  // the limits and, unless any_order, not marked as nondeterministic; null if there is none. No
  // engine is known that computes a deterministic backward graph with less workspace than the
  // gradients of all scores (cuDNN 9.19). Compiles for about a second, so it must not be called
  // while a stream is captured.
  static std::unique_ptr<Plan> make(std::unique_ptr<Graph> graph, const Target& target,
                                    const Limits& limits);

  int64_t workspace() const { return workspace_; }  // bytes
  // Queues the plan on the library's stream. pointers: address of each stored tensor and scalar by
  // id; scalars are read before this returns.
  void run(cudnnHandle_t library, const std::map<int64_t, void*>& pointers, void* workspace) const;

 private:
  Plan(std::unique_ptr<Graph> graph, const Target& target);
  std::vector<Descriptor> choices(const Target& target) const;

  std::unique_ptr<Graph> graph_;
  Descriptor operations_, compiled_;
  int64_t workspace_ = 0;
};

}  // namespace megatron::kernels::cuda::cudnn
