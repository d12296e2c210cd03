// Runs a stage's schedule: what the stage computes comes from outside, messages to and from the
// neighbouring stages are made here.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "parallel/schedule.h"

namespace megatron::parallel {

// One action on the wire: an activation to the stage that holds the next virtual stage of the model, or a
// gradient to the one before.
struct Transfer {
  enum class Kind { send_activation, receive_activation, send_gradient, receive_gradient };
  Kind kind = Kind::send_activation;
  int peer = 0;   // stage
  int chunk = 0;  // of this stage
  int micro_batch = 0;
};
// A stage's actions with its transfers between them. A send stands between the action that made it
// and the next one; a receive before the action that needs it, as early as it can stand without the
// receiver waiting for what the sender makes later: before every action that begins when the
// message has been made or, where receives are begun ahead and the receiver goes on, ends after
// that (times: kPlacingTimes of parallel/simulate.h). Executed in this order by every stage, even
// with sends that end only when they are received, no order of arrival can deadlock, and two stages
// give and take the messages between them in the same order. Pieces that one stage holds next to
// each other (zb-v's turn) have no transfer. Throws Error as simulate() does.
enum class Receives { waited_for, begun_ahead };
struct Step {
  bool is_transfer = false;
  Action action;
  Transfer transfer;
};
std::vector<Step> with_transfers(const PipelineShape& shape, const std::vector<Schedule>& stages,
                                 int stage, Receives receives = Receives::waited_for);
// Of every stage.
std::vector<std::vector<Step>> with_transfers(const PipelineShape& shape,
                                              const std::vector<Schedule>& stages,
                                              Receives receives = Receives::waited_for);

// What a stage computes. Tensors that travel are contiguous and of one shape and type a run, or,
// with variable shapes, of whatever shape the sender has.
class StageWork {
 public:
  virtual ~StageWork() = default;
  // The first part gets its input, the last one gives what it made; between them, and for the others, undefined.
  //
  // input: undefined for the model's first virtual stage. Gives what goes to the next virtual stage; undefined for
  // the last one.
  virtual Tensor forward(const Action& action, const Tensor& input) = 0;
  // gradient: of what forward gave; undefined for the last virtual stage. Without `weights`, weight() forms the
  // weights' gradients. Gives the input's gradient; undefined for the first virtual stage.
  virtual Tensor backward(const Action& action, const Tensor& gradient, bool weights) = 0;
  virtual void weight(int chunk, int micro_batch) = 0;
  // Memory for what is to be received for an action (activation: [T, H] of that micro-batch); asked
  // for once for the activation and once for the gradient. With variable shapes it has the type,
  // and is used where it has the shape that the sender names; else memory is taken of the runtime.
  virtual Tensor receive_into(int chunk, int micro_batch) = 0;
};

struct PipelineOptions {
  bool overlap = true;           // transfers overlap with compute, where `async` is given
  bool variable_shapes = false;  // each message is preceded by its shape
};

class Pipeline {
 public:
  // stages: the group of the pipeline's stages; async: the same ranks, for transfers that overlap with compute;
  // null groups: one stage. Borrowed.
  Pipeline(const PipelineShape& shape, comm::Group* stages, comm::Group* async, Runtime& runtime,
           const PipelineOptions& options);
  ~Pipeline();

  int stage() const;
  const PipelineShape& shape() const { return shape_; }
  // One step. Collective over the stages. `executed` is called with each action that has ended, if
  // given. Throws what the work throws; the other stages' calls then throw, as the group's do.
  void run(int micro_batches, StageWork& work,
           const std::function<void(const Action&)>& executed = {});
  // Forward only.
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
