// Forward and backward of a micro-batch, recorded once and then launched as a whole (CUDA graphs,
// device/recording.h): the same work on the same memory, bitwise equal, with one launch by the host
// instead of one per kernel.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "autograd/tape.h"
#include "comm/group.h"
#include "device/recording.h"
#include "nn/batch.h"

namespace megatron::training {

struct RecordedCounts {
  int64_t recorded = 0;  // recordings made
  int64_t replayed = 0;  // micro-batches launched from one, including the one that was recorded
};

// Runs the micro-batches of one chunk, which communicates only with the ranks that share its
// matrices (tensor parallelism). A recording fixes a form: the addresses of inputs, parameters and
// gradients, the batch's shape, and which gradients are the first of the step (stored) or later
// ones (added). A form runs eagerly until `warm_up` steps are over, and at least once; then it is
// recorded, once for all steps.
//
// Between two replays, other work may use the memory of a form's tensors; if some of it is still
// held when the form comes again, the form is recorded again. Inputs (nn::Batch) are filled before
// begin(), and stay at the same addresses for all micro-batches.
//
// Ranks whose calls are recorded (comm::Group::queued()) all do the same: they agree before each
// micro-batch, by a call on host memory, and all run it eagerly, or record it, if one of them must.
//
// The GradientListener is called after the backward of a micro-batch that is recorded or replayed:
// never while work is recorded.
class CudaGraphRunner final : public GradientListener {
 public:
  // parameters, runtime, next, the gradients' listener, and ranks, whose calls are in a
  // micro-batch (null: of none), are borrowed; async: the same ranks again, or null. Only on a CUDA
  // device is anything recorded; elsewhere the memory is taken, for plans.
  CudaGraphRunner(std::vector<Parameter*> parameters, Runtime& runtime, GradientListener& next,
                  int64_t warm_up, comm::Group* ranks, comm::Group* async);
  ~CudaGraphRunner() override;

  void begin_step() { ++steps_; }

  // What the caller does between begin() and end(): nothing for `replay`, where everything is
  // queued; else forward and backward, with this as the tape's listener and, for `record`, with
  // loss() as the destination of the sum of losses. Unless `recordable` on all ranks, the
  // micro-batch runs eagerly.
  enum class Way { eager, record, replay };
  Way begin(const nn::Batch& batch, bool recordable);
  void end();
  void drop();  // of a micro-batch that failed: nothing is recorded any more
  const Tensor& loss() const { return loss_; }  // 0-d f64

  const RecordedCounts& counts() const { return counts_; }

  void gradient_begins(Parameter& parameter) override;
  void gradient_final(Parameter& parameter, int micro_batch) override;

 private:
  struct Form;
  std::vector<uint64_t> key_of(const nn::Batch& batch) const;
  Form& form_of(const nn::Batch& batch);
  bool memory_is_free(const Form& form) const;
  Way agreed(Way own, int64_t recording);
  void replay(Form& form);
  void queue(Form& form);

  std::vector<Parameter*> parameters_;  // trainable ones
  Runtime& runtime_;
  GradientListener& next_;
  int64_t warm_up_, steps_ = 0;
  comm::Group *ranks_, *async_;
  std::shared_ptr<Arena> host_arena_;
  HostStream host_;  // of calls with these
  Tensor loss_;
  std::vector<std::unique_ptr<Form>> forms_;
  Form* form_ = nullptr;  // of the micro-batch under way
  std::unique_ptr<StreamRecording> recording_;
  std::vector<int> counts_before_;  // micro-batches in each use, when it began
  RecordedCounts counts_;
};

}  // namespace megatron::training
