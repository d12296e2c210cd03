// Forward and backward of a micro-batch, recorded once and then launched as a whole (CUDA graphs,
// device/recording.h): the same work on the same memory, bitwise equal, with one launch by the host
// instead of one per kernel.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/tape.h"
#include "comm/group.h"
#include "device/recorded_part.h"
#include "nn/batch.h"

namespace megatron::training {

struct RecordedCounts {
  int64_t recorded = 0;  // micro-batches that were recorded
  int64_t replayed = 0;  // that were launched, including those that were recorded
};

// Runs micro-batches, one after another, of chunks that communicate within one only with the ranks
// that share their matrices (tensor parallelism). A recording fixes a form: the chunk, the
// addresses of inputs, parameters and gradients, the batch's shape, and whether gradients are the
// first of the step (stored) or later ones (added). A form runs eagerly until `warm_up` steps are
// over, and at least once; then it is recorded, once for all steps.
//
// A micro-batch is recorded in as many parts as pause() and resume() make of it, always the same
// ones: between them a pipeline exchanges messages, and other micro-batches have their turn, which
// leave alone the memory that it holds then, and what its later parts take (device/own_arenas.h).
// All of its parts run eagerly, or are recorded, or replayed.
//
// Between two replays, other work may use the memory of a form's tensors; if some of it is still
// held when the form comes again, the form is recorded again. Inputs (nn::Batch, and other
// tensors) are filled before a part begins, and stay at the same addresses for all micro-batches.
//
// Ranks whose calls are recorded (comm::Group::queued()) all do the same: they agree before each
// micro-batch, by a call on host memory, and all run it eagerly, or record it, if one of them must.
//
// The GradientListener is called after a part that is recorded or replayed: never while work is
// recorded.
class CudaGraphRunner final : public GradientListener {
 public:
  // parameters (of all chunks), runtime, with all arenas that parts take memory of, next, the
  // gradients' listener, and ranks, whose calls are in a
  // micro-batch (null: of none), are borrowed; async: the same ranks again, or null. Only on a CUDA
  // device is anything recorded.
  CudaGraphRunner(std::vector<Parameter*> parameters, Runtime& runtime, GradientListener& next,
                  int64_t warm_up, comm::Group* ranks, comm::Group* async);
  ~CudaGraphRunner() override;

  void begin_step() { ++steps_; }

  // What the caller does in each part: nothing for `replay`, where everything is queued; else what
  // it is, with this as the tape's listener, on the same memory each time it is recorded. Unless
  // `recordable` on all ranks, the micro-batch runs eagerly.
  enum class Way { eager, record, replay };
  struct Work {
    int chunk = 0;
    bool first = true;  // of the step
  };
  Way begin(const nn::Batch& batch, std::initializer_list<Tensor> others, const Work& work,
            bool recordable);
  void pause();                     // a part is over
  void resume();                    // the next one begins
  void end();                       // the last one is over
  void drop();                      // of a micro-batch that failed: nothing is recorded any more
  Way way() const { return way_; }  // of the last one

  const RecordedCounts& counts() const { return counts_; }

  void gradient_begins(Parameter& parameter) override;
  void gradient_final(Parameter& parameter, int micro_batch) override;

 private:
  struct UseState;
  struct Part;
  struct Form;
  std::vector<UseState> use_states() const;
  std::vector<uint64_t> key_of(const nn::Batch& batch, std::initializer_list<Tensor> others,
                               const Work& work) const;
  Form& form_of(std::vector<uint64_t> key);
  bool may_replay(const Form& form) const;
  Way agreed(Way own, int64_t recording);
  void begin_part();
  void end_part();
  void replay(Part& part);
  void queue(Part& part);

  std::vector<Parameter*> parameters_;  // trainable ones
  Runtime& runtime_;
  GradientListener& next_;
  int64_t warm_up_, steps_ = 0;
  comm::Group *ranks_, *async_;
  std::shared_ptr<Arena> host_arena_;
  HostStream host_;  // of calls with these
  std::vector<std::unique_ptr<Form>> forms_;
  Form* form_ = nullptr;  // of the micro-batch under way
  size_t part_ = 0;       // of it
  Way way_ = Way::eager;
  std::optional<PartRecording> recording_;
  RecordedCounts counts_;
};

}  // namespace megatron::training
