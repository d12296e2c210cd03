// One training step: forward and backward of every micro-batch by the pipeline's schedule,
// reduction over data-parallel ranks, gradient norm, clipping and update, which is left out where a
// gradient is not finite. `train`, `bench step`, `verify` and `selftest` all run this one.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "comm/group.h"
#include "corpus/batch.h"
#include "device/own_arenas.h"
#include "models/stage.h"
#include "optim/loss_scale.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel.h"
#include "parallel/pipeline.h"
#include "parallel/ranks.h"
#include "report/log/step_times.h"
#include "training/cuda_graph_runner.h"
#include "training/module_states.h"
#include "training/work_reporter.h"

namespace megatron::training {

struct StepOptions {
  settings::LossScope loss_scope = settings::LossScope::token;
  models::RecomputeOptions recompute;  // its tensor ranks are the step's
  models::OffloadOptions offload;
  int64_t hidden = 0;        // of what travels between pipeline stages
  bool check_finite = true;  // no update where the loss or a gradient is not finite
  // With a scale (fp16), gradients that are not finite are an overflow of it, check_finite or not.
  std::optional<optim::LossScaleSettings> loss_scale;
  // On CUDA: micro-batches are recorded when so many steps are over (cuda_graph_runner.h).
  // Absent: never. For parameters and gradients that stay where they are, tensor-parallel ranks
  // that talk by NCCL; of pipelines, micro-batches of one shape, and schedules without actions for
  // weights alone.
  std::optional<int64_t> record_after;
  parallel::DataParallelOptions data_parallel;
  parallel::PipelineOptions pipeline;
  const kernels::Table* table = nullptr;  // of forward and backward; default: the device's
  SpanListener* spans = nullptr;          // called at every span of forward and backward
  int64_t timing_level = 0;               // of StepReport::times
};

// What became of a step. Unless `updated`, it left the parameters and the optimizer as they were.
enum class StepOutcome {
  updated,
  overflow,  // of fp16 gradients at this loss scale: all in order, the next step is made with another
  not_finite,  // the loss, or a gradient that the loss scale cannot help
};

struct StepReport {
  double loss = 0;           // sum over all counted tokens of the step / their number; without
                             // auxiliary losses
  double tokens = 0;         // counted tokens of all ranks
  double gradient_norm = 0;  // before clipping; without the loss scale
  double loss_scale = 1;     // that the step was made with
  StepOutcome outcome = StepOutcome::updated;  // the same on all ranks
  std::vector<MetricValue> metrics;            // the model's, of all ranks; without data: none
  report::StepTimes times;

  bool updated() const { return outcome == StepOutcome::updated; }
};

// Parts of a step, one after another.
enum class StepPart { forward_backward, norm, update };
std::string_view name(StepPart part);  // "forward and backward", "gradient norm", "update"

// Called at the spans of a step's forward and backward, and at its parts.
class StepListener : public SpanListener {
 public:
  virtual void began(StepPart) {}
  virtual void ended(StepPart) {}
};

class TrainStep final : private parallel::StageWork {
 public:
  // chunks: what this rank holds of the model, one for each of ranks.pipeline()'s chunks; their
  // parameters get their memory here and are to be filled through shards(), before begin(). All are
  // borrowed.
  TrainStep(std::span<models::Stage* const> chunks, DType type, const parallel::Ranks& ranks,
            Runtime& runtime, const StepOptions& options);

  // Elements of parameters that this rank keeps, of all chunks in the model's order; to be filled
  // once.
  std::span<const parallel::Shard> shards() const { return data_parallel_.shards(); }
  // Those that modules have besides parameters; to be filled, too.
  std::span<nn::ModuleState* const> states() const { return states_.all(); }
  // After that: the optimizer, whose master weights begin as the values. Collective.
  void begin(const optim::OptimizerConfig& optimizer);

  // micro_batches: this rank's, in order; every rank has as many. Collective.
  StepReport run(std::span<const corpus::HostBatch> micro_batches, const optim::StepInputs& inputs);
  // Only forward and backward and the reduction: gradients (divided by nothing) lie in the
  // parameters' first uses, and the divisor that run() would apply (tokens and loss scale) is
  // returned through it.
  StepReport accumulate(std::span<const corpus::HostBatch> micro_batches, double& divisor);

  // Makes the products of a step, so that they can be timed, and drops the results: parameters,
  // optimizer and loss scale stay, and nothing is recorded. After begin(). Collective.
  void rehearse(std::span<const corpus::HostBatch> micro_batches);

  // For plans: the next steps are of so many micro-batches, although run() is given fewer, which
  // stand for all.
  void expect(int64_t micro_batches);

  // Listens from the next step on, as the options' listener does; null: nobody. Borrowed. Gives
  // who was before.
  StepListener* listen(StepListener* listener);
  // Of the pipeline's schedule, that is being made; none where all are over, or none has begun.
  const std::optional<parallel::Action>& action() const { return action_; }
  int micro_batch() const { return action_ ? action_->micro_batch : -1; }  // of it; -1: none
  // Micro-batches (of a pipeline: of each chunk) that were recorded and replayed so far; none while
  // somebody listens to the step or watches its stream, or where ranks are to exchange gradients or
  // parameters meanwhile.
  RecordedCounts recorded() const;
  // Bytes that micro-batches of pipelines have apart from the runtime's arenas; and at most,
  // whatever chunks come to each place.
  int64_t own_memory(MemoryClass memory_class) const;
  int64_t most_own_memory(MemoryClass memory_class) const;

  optim::Optimizer& optimizer() { return *optimizer_; }  // after begin()
  const optim::Optimizer& optimizer() const { return *optimizer_; }
  // Who brings parameters where they are needed: to be called at the spans of other passes, too.
  parallel::DataParallel& data_parallel() { return data_parallel_; }
  std::span<models::Stage* const> chunks() const { return chunks_; }
  const parallel::Ranks& ranks() const { return ranks_; }
  const StepOptions& options() const { return options_; }
  WorkReporter& work_reporter() { return work_reporter_; }
  optim::LossScale& loss_scale() { return loss_scale_; }  // constant 1 where the options have none
  const optim::LossScale& loss_scale() const { return loss_scale_; }

 private:
  // A place for a micro-batch of a chunk between its forward and the end of its backward.
  struct InFlight {
    corpus::DeviceBatch batch;
    bool taken = false;
    const nn::Batch* filled = nullptr;  // of `batch`
    std::unique_ptr<Tape> tape;
    std::optional<models::ForwardInParts> pass;  // under way
    Var input, output;  // from and to the virtual stages before and after the chunk
    // Where micro-batches are recorded; the others, of pipelines only.
    std::unique_ptr<CudaGraphRunner> recorded;
    std::unique_ptr<OwnArenas> memory;  // of forward: what backward needs
    Tensor received;                    // a copy of what came from the virtual stage before
  };
  Tensor forward(const parallel::Action& action, const Tensor& input) override;
  Tensor backward(const parallel::Action& action, const Tensor& gradient, bool weights) override;
  void weight(int chunk, int micro_batch) override;
  Tensor receive_into(int chunk, int micro_batch) override;
  InFlight& begin_forward(const parallel::Action& action);
  Bundle input_of(InFlight& slot, const Tensor& input);
  Tensor forward_of(InFlight& slot, const models::Stage& stage, int micro_batch,
                    const Tensor& input, const nn::Batch& batch);
  Tensor output_of(InFlight& slot, const models::Stage& stage, int micro_batch, const Bundle& out,
                   const nn::Batch& batch);
  Tensor forward_part(const parallel::Action& action, const Tensor& input);
  Tensor backward_part(const parallel::Action& action, const Tensor& gradient);
  Tensor backward_of(InFlight& slot, const Tensor& gradient, bool weights);
  bool in_parts() const { return records_ && ranks_.stages() != nullptr; }
  Tensor forward_in_parts(InFlight& slot, const models::Stage& stage, const Tensor& input,
                          const nn::Batch& batch);
  Tensor backward_in_parts(InFlight& slot, int micro_batch, const Tensor& gradient);
  Tensor boundary(int micro_batch, std::string_view label);
  void copy(const Tensor& from, const Tensor& to);
  void rest(Tensor& place, int micro_batch);
  Tensor sent(int micro_batch);
  void take_loss(const InFlight& slot, int micro_batch);
  void end(InFlight& slot);
  void drop_tapes();
  bool recordable(int micro_batch) const;
  InFlight make_slot();
  void make_tape(InFlight& slot);
  Tensor total(int micro_batch) const;  // where the sum of its losses goes
  size_t& place_of(int chunk, int micro_batch);
  InFlight& take_place(int chunk, int micro_batch);
  InFlight& in_flight(int chunk, int micro_batch) {
    return in_flight_[place_of(chunk, micro_batch)];
  }
  template <class F>
  void for_each_recorded(F&& f) const {
    for (const InFlight& slot : in_flight_)
      if (slot.recorded != nullptr) f(*slot.recorded);
  }
  void make_room();
  void forward_backward(std::span<const corpus::HostBatch> micro_batches);
  void make_totals(int64_t micro_batches);
  class Timed;
  double time_at(int64_t level);
  StepOutcome outcome(double loss, double gradient_norm) const;

  std::vector<models::Stage*> chunks_;
  const parallel::Ranks& ranks_;
  parallel::TensorParallel tensor_;
  WorkReporter work_reporter_;
  Runtime& runtime_;
  StepOptions options_;
  parallel::DataParallel data_parallel_;
  parallel::Pipeline pipeline_;
  std::optional<optim::Optimizer> optimizer_;
  Metrics metrics_;
  ModuleStates states_;
  optim::LossScale loss_scale_;
  DType type_;
  bool rehearses_ = false;
  bool records_ = false;
  Tensor loss_;  // 0-d f64: where a recorded micro-batch sums its losses
  // Of pipelines: what a recorded forward or backward makes for another stage, and the gradient
  // that it gets from one.
  Tensor outgoing_, gradient_;
  std::optional<OwnArenas> backward_memory_;  // of pipelines: no two are in backward at once
  std::vector<InFlight> in_flight_;
  std::vector<size_t> places_;                  // in these, of each chunk and micro-batch
  std::span<const corpus::HostBatch> batches_;  // of the step under way
  StepListener* listener_ = nullptr;
  std::optional<parallel::Action> action_;
  report::StepTimes times_;  // of the step under way
  int64_t expected_ = 0;     // micro-batches; 0: those that are given
  // f64, which the host reads at once: the totals, loss sum of each micro-batch and then the counted
  // tokens, and the metrics' sums.
  Tensor sums_, totals_;
};

// Sum of the losses of the counted tokens, and their number.
struct LossSum {
  double sum = 0, tokens = 0;
  double mean() const;  // throws Error when no token was counted
};

}  // namespace megatron::training
