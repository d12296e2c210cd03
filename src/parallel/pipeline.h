// Runs a stage's schedule: the caller provides the stage's compute, and the pipeline exchanges
// messages with the neighbouring stages.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "parallel/schedule.h"

namespace megatron::parallel {

// A message: an activation to the stage that holds the next virtual stage of the model, or a
// gradient to the one before.
struct Transfer {
  enum class Kind { send_activation, receive_activation, send_gradient, receive_gradient };
  Kind kind = Kind::send_activation;
  int peer = 0;   // stage
  int chunk = 0;  // of this stage
  int micro_batch = 0;
};
// Inserts transfers between a stage's actions. A send is placed between the action that made it and
// the next one. A receive is placed before the action that needs it, as early as possible without
// making the receiver wait for something that the sender makes later: before every action that
// begins when the message has been made or, if receives are begun ahead and the receiver continues,
// ends after that (times: kPlacingTimes of parallel/simulate.h). If every stage executes this
// order, even with sends that end only when they are received, no order of arrival can deadlock,
// and two stages send and receive the messages between them in the same order. Consecutive pieces
// on one stage (zb-v's turn) have no transfer. Throws Error as simulate() does.
// first_trained: virtual stages before it have no gradient, and none is sent to them.
enum class Receives { waited_for, begun_ahead };
struct Step {
  bool is_transfer = false;
  Action action;
  Transfer transfer;
};
std::vector<Step> with_transfers(const PipelineShape& shape, const std::vector<Schedule>& stages,
                                 int stage, Receives receives = Receives::waited_for,
                                 int first_trained = 0);
// The same for every stage.
std::vector<std::vector<Step>> with_transfers(const PipelineShape& shape,
                                              const std::vector<Schedule>& stages,
                                              Receives receives = Receives::waited_for,
                                              int first_trained = 0);

// The tensors of a message, in an order on which both ends agree.
using Payload = std::vector<Tensor>;

// Compute of a stage. Transferred tensors are contiguous, and have the number, shapes and types
// that the receiver expects.
class StageWork {
 public:
  virtual ~StageWork() = default;
  // The first part receives its input, the last one returns its result; all others are empty.
  //
  // input: empty for the model's first virtual stage. Returns the input of the next virtual stage;
  // empty for the last one.
  virtual Payload forward(const Action& action, const Payload& input) = 0;
  // gradient: of the result of forward, tensor by tensor; empty for the last virtual stage and for
  // those before the first trained one. Without `weights`, weight() computes the weights'
  // gradients. Returns the input's gradient; empty for virtual stages up to the first trained one.
  virtual Payload backward(const Action& action, const Payload& gradient, bool weights) = 0;
  virtual void weight(int chunk, int micro_batch) = 0;
  // Memory for what is received for a micro-batch: the input of forward, or the gradient of its
  // result.
  virtual Payload receive_into(int chunk, int micro_batch, bool gradient) = 0;
};

struct PipelineOptions {
  bool overlap = true;    // transfers overlap with compute, where `async` is given
  int first_trained = 0;  // first virtual stage with a trainable parameter
};

class Pipeline {
 public:
  // stages: group of the pipeline's stages; async: the same ranks, for transfers that overlap with
  // compute; null groups: one stage. Borrowed.
  Pipeline(const PipelineShape& shape, comm::Group* stages, comm::Group* async, Runtime& runtime,
           const PipelineOptions& options);
  ~Pipeline();

  int stage() const;
  const PipelineShape& shape() const { return shape_; }
  // Runs one step. Collective over the stages. `executed`, if given, is called after each action.
  // Throws what the work throws; the other stages' calls then throw, like the group's.
  void run(int micro_batches, StageWork& work,
           const std::function<void(const Action&)>& executed = {});
  // Runs only the forward passes.
  void run_forward(int micro_batches, StageWork& work);

 private:
  struct Prepared;
  class Execution;
  Prepared& prepare(int micro_batches, bool forward_only);
  bool overlaps() const { return options_.overlap && async_ != nullptr; }

  PipelineShape shape_;
  comm::Group* stages_;
  comm::Group* async_;
  Runtime& runtime_;
  PipelineOptions options_;
  std::map<std::pair<int, bool>, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace megatron::parallel
