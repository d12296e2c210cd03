// Micro-batches of a step that are captured as CUDA graphs (cuda_graph_runner.h): in one part or,
// with pipelines, with forward and backward as separate parts. Data from and for other stages is
// copied between the parts, since captured work always reads and writes the same addresses.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/own_arenas.h"
#include "models/boundary.h"
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
    // Copies of the inputs from the previous virtual stage, by their forms.
    std::deque<parallel::Payload> received;

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
    bool sends = false;                           // true if the output goes to another stage
    std::vector<models::TensorForm> entry, exit;  // of what crosses the chunk's edges
    // Allocates it.
    std::function<parallel::Payload(std::span<const models::TensorForm>, std::string_view label)>
        message;
    Tensor total;  // receives its loss
    std::function<parallel::Payload(const parallel::Payload& input)>
        make;  // does the work, eagerly or while it is captured
  };
  // input: from another stage, or empty. Returns what to send, or nothing.
  parallel::Payload forward(const Pass& pass, const parallel::Payload& input);
  parallel::Payload backward(const Pass& pass, const parallel::Payload& gradient);

  // 0-d f64: accumulates the losses of a captured pass.
  const Tensor& loss() const { return loss_; }
  static bool records(const Slot* slot) {
    return slot != nullptr && slot->runner.way() == CudaGraphRunner::Way::record;
  }
  int64_t backward_memory(MemoryClass memory_class) const;

 private:
  using Places = std::deque<parallel::Payload>;
  void copy(const Tensor& from, const Tensor& to);
  void copy(const parallel::Payload& from, const parallel::Payload& to);
  static parallel::Payload& place(Places& places, const Pass& pass,
                                  std::span<const models::TensorForm> forms);
  void make_unless_replayed(const Pass& pass, const parallel::Payload& input,
                            const parallel::Payload& out);
  void take_loss(const Pass& pass);
  parallel::Payload sent(const Pass& pass, std::span<const models::TensorForm> forms);

  Runners runners_;
  bool in_parts_;
  Runtime& runtime_;
  Tensor loss_;
  // Pipelines only: outputs of a forward or backward for another stage, and gradients received from
  // one, by their forms.
  Places outgoing_, gradients_;
  std::optional<OwnArenas>
      backward_memory_;  // pipelines: shared, since only one micro-batch is in backward at a time
};

}  // namespace megatron::training
