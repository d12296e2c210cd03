// Micro-batches of a step that are captured as CUDA graphs (cuda_graph_runner.h): in one part or,
// with pipelines, with forward and backward as separate parts. Data from and for other stages is
// copied between the parts, since captured work always reads and writes the same addresses.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "device/own_arenas.h"
#include "training/cuda_graph_runner.h"

namespace megatron::training {

class StepGraphs {
 public:
  // Arguments of its runners (CudaGraphRunner), borrowed.
  struct Runners {
    std::vector<Parameter*> parameters;
    GradientListener& gradients;
    int64_t warm_up = 0;
    std::vector<comm::Group*> ranks, async;
  };
  // in_parts: captures forward and backward as separate parts, as pipelines need.
  StepGraphs(Runners runners, bool in_parts, Runtime& runtime);

  // State of one micro-batch between its forward and the end of its backward.
  struct Slot {
    CudaGraphRunner runner;
    std::optional<OwnArenas> memory;  // pipelines: tensors of forward that backward needs
    Tensor received;                  // copy of the input from the previous virtual stage

    int64_t own_memory(MemoryClass memory_class) const {
      return memory ? memory->high_water(memory_class) : 0;
    }
  };
  std::unique_ptr<Slot> make_slot();

  // A forward or backward pass of a micro-batch.
  struct Pass {
    Slot& slot;
    const nn::Batch& batch;
    CudaGraphRunner::Work work;
    bool recordable = true;
    bool sends = false;  // true if the output goes to another stage
    std::function<Tensor(std::string_view label)> message;  // allocates the tensor to send
    Tensor total;                                           // receives its loss
    std::function<Tensor(const Tensor& input)>
        make;  // does the work, eagerly or while it is captured
  };
  // input: from another stage, or undefined. Returns the tensor to send, or an undefined one.
  Tensor forward(const Pass& pass, const Tensor& input);
  Tensor backward(const Pass& pass, const Tensor& gradient);

  // 0-d f64: accumulates the losses of a captured pass.
  const Tensor& loss() const { return loss_; }
  static bool records(const Slot* slot) {
    return slot != nullptr && slot->runner.way() == CudaGraphRunner::Way::record;
  }
  int64_t backward_memory(MemoryClass memory_class) const;

 private:
  void copy(const Tensor& from, const Tensor& to);
  void make_place(Tensor& place, const Pass& pass);
  void make_unless_replayed(const Pass& pass, const Tensor& input);
  void take_loss(const Pass& pass);
  Tensor sent(const Pass& pass);

  Runners runners_;
  bool in_parts_;
  Runtime& runtime_;
  Tensor loss_;
  // Pipelines only: output of a forward or backward for another stage, and the gradient received
  // from one.
  Tensor outgoing_, gradient_;
  std::optional<OwnArenas>
      backward_memory_;  // pipelines: shared, since only one micro-batch is in backward at a time
};

}  // namespace megatron::training
