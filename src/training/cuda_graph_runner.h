// Forward and backward of a micro-batch, captured once and then replayed as a whole (CUDA graphs,
// device/recording.h): the same work on the same memory, bitwise equal, with one launch by the host
// instead of one per kernel.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "autograd/tape.h"
#include "comm/group.h"
#include "device/recorded_part.h"
#include "nn/batch.h"

namespace megatron::training {

struct RecordedCounts {
  int64_t recorded = 0;  // micro-batches that were captured
  int64_t replayed = 0;  // micro-batches launched as graphs, including the captured ones
};

// Runs micro-batches, one after another, of chunks that communicate within one only with the ranks
// that share their matrices (tensor parallelism) or their sequences (context parallelism). A
// recording fixes a form: the chunk, the addresses of inputs, parameters and gradients, the batch's
// shape, and whether gradients are the first of the step (stored) or later ones (added). A form
// runs eagerly until `warm_up` steps are over, and at least once; then it is recorded, once for all
// steps.
//
// A micro-batch is captured in the parts into which pause() and resume() divide it, which are
// always the same. Between the parts a pipeline exchanges messages, and other micro-batches run,
// which do not touch the memory that this one holds at that point or that its later parts take
// (device/own_arenas.h). All parts of a micro-batch run eagerly, or all are captured, or all are
// replayed.
//
// Between two replays, other work may use the memory of a form's tensors; if some of it is still
// held when the form is needed again, the form is captured again. Inputs (nn::Batch, and other
// tensors) are filled before a part begins, and stay at the same addresses for all micro-batches.
//
// Ranks whose calls are captured (comm::Group::queued()) all do the same: before each micro-batch
// they agree, by a call on host memory, and all run it eagerly, or capture it, if one of them must.
//
// The GradientListener is called after a part that is captured or replayed, never during capture.
class CudaGraphRunner final : public GradientListener {
 public:
  // parameters: those of all chunks. runtime has all arenas from which parts allocate. next:
  // listener that is notified of gradients. ranks: groups whose calls a micro-batch contains, one
  // per axis of the layout. async: the same ranks for overlapped calls. All are borrowed. Nothing
  // is captured unless the device is CUDA.
  CudaGraphRunner(std::vector<Parameter*> parameters, Runtime& runtime, GradientListener& next,
                  int64_t warm_up, std::vector<comm::Group*> ranks,
                  std::vector<comm::Group*> async);
  ~CudaGraphRunner() override;

  void begin_step() { ++steps_; }

  // How the current micro-batch runs. For `replay`, the caller does nothing: the graphs are
  // launched here. Otherwise it does each part's work itself, with this object as the tape's
  // listener and, when captured, on the same memory each time. A micro-batch runs eagerly unless it
  // is `recordable` on all ranks.
  enum class Way { eager, record, replay };
  struct Work {
    int chunk = 0;
    bool first = true;  // true for the first micro-batch of the step
  };
  Way begin(const nn::Batch& batch, std::span<const Tensor> others, const Work& work,
            bool recordable);
  void pause();                     // ends a part
  void resume();                    // begins the next part
  void end();                       // ends the last part
  void drop();                      // abandons a failed micro-batch; nothing is captured afterwards
  Way way() const { return way_; }  // of the last micro-batch

  const RecordedCounts& counts() const { return counts_; }

  void gradient_begins(Parameter& parameter) override;
  void gradient_final(Parameter& parameter, int micro_batch) override;

 private:
  struct UseState;
  struct Part;
  struct Form;
  std::vector<UseState> use_states() const;
  std::vector<uint64_t> key_of(const nn::Batch& batch, std::span<const Tensor> others,
                               const Work& work) const;
  // Adds a batch's shape and the addresses of its tensors.
  static void add_places(const nn::Batch& batch, std::vector<uint64_t>& key);
  Form& form_of(std::vector<uint64_t> key);
  bool may_replay(const Form& form) const;
  Way agreed(Way own, int64_t recording);
  void begin_part();
  void end_part();
  void replay(Part& part);
  void queue(Part& part);

  std::vector<Parameter*> parameters_;       // the trainable parameters
  std::vector<const Parameter*> quantized_;  // those with quantized products, frozen ones included
  Runtime& runtime_;
  GradientListener& next_;
  int64_t warm_up_, steps_ = 0;
  std::vector<comm::Group*> ranks_, async_;
  std::shared_ptr<Arena> host_arena_;
  HostStream host_;  // stream of host calls among `ranks_`
  std::vector<std::unique_ptr<Form>> forms_;
  Form* form_ = nullptr;  // form of the micro-batch in flight
  size_t part_ = 0;       // index of the current part in it
  Way way_ = Way::eager;
  std::optional<PartRecording> recording_;
  RecordedCounts counts_;
};

}  // namespace megatron::training
