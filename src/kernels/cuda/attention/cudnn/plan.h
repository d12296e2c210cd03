// A graph compiled for a device.
#pragma once

#include <map>
#include <memory>

#include "kernels/cuda/attention/cudnn/graph.h"

namespace megatron::kernels::cuda::cudnn {

// Whom a plan is made for: a library's device or, without one, a description of a device
// (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, since cuDNN 9.8), for plans that are only looked at.
struct Target {
  cudnnHandle_t library = nullptr;
  const Descriptor* device = nullptr;
};

// Bytes of workspace that a plan may take, and whether its bits may differ from run to run.
struct Limits {
  int64_t least = 0, most = 0;
  bool any_order = false;
};

class Plan {
 public:
  // The first of cuDNN's choices for the graph, which it orders by expected speed, that keeps to
  // the limits and, unless any order is allowed, is not noted as one whose bits differ from run to
  // run; null where there is none. Of a backward graph that keeps its order no engine is known that
  // takes less workspace than the gradients of all scores (cuDNN 9.19). Compiles for about a
  // second: not for a stream in capture.
  static std::unique_ptr<Plan> make(std::unique_ptr<Graph> graph, const Target& target,
                                    const Limits& limits);

  int64_t workspace() const { return workspace_; }  // bytes
  // Queues it on the library's stream. A pointer for each stored tensor and scalar by its id;
  // scalars are read before this returns.
  void run(cudnnHandle_t library, const std::map<int64_t, void*>& pointers, void* workspace) const;

 private:
  Plan(std::unique_ptr<Graph> graph, const Target& target);
  std::vector<Descriptor> choices(const Target& target) const;

  std::unique_ptr<Graph> graph_;
  Descriptor operations_, compiled_;
  int64_t workspace_ = 0;
};

}  // namespace megatron::kernels::cuda::cudnn
