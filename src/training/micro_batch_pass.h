// Forward and backward of a step's micro-batches on one rank, in the order of the pipeline's
// schedule: the batch, the model and the loss of each.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "corpus/batch.h"
#include "models/stage.h"
#include "optim/loss_scale.h"
#include "parallel/data_parallel.h"
#include "parallel/pipeline.h"
#include "parallel/ranks.h"
#include "settings/batch_settings.h"
#include "training/objective.h"
#include "training/step_graphs.h"
#include "training/step_timer.h"
#include "training/step_totals.h"
#include "training/work_reporter.h"

namespace megatron::training {

struct StepOptions {
  settings::LossScope loss_scope = settings::LossScope::token;  // token with an objective
  // Null: the mean loss of the next tokens, whose gradient is formed with the loss.
  std::shared_ptr<const Objective> objective;
  // Names of the sources of examples whose losses are metrics ("loss/NAME").
  std::vector<std::string> sources;
  bool log_entropy = false;            // of the tokens that count; not with captured micro-batches
  models::RecomputeOptions recompute;  // the step sets its tensor-parallel ranks
  models::OffloadOptions offload;
  bool check_finite = true;  // skip the update if the loss or a gradient is not finite
  // With a scale (fp16), gradients that are not finite count as an overflow, regardless of
  // check_finite.
  std::optional<optim::LossScaleSettings> loss_scale;
  // On CUDA: number of steps after which micro-batches are captured (cuda_graph_runner.h); absent:
  // never. Requires parameters and gradients at fixed addresses and tensor-parallel and
  // context-parallel ranks that communicate by NCCL; for pipelines also micro-batches of one shape,
  // and schedules without separate weight-gradient actions.
  std::optional<int64_t> record_after;
  parallel::DataParallelOptions data_parallel;
  parallel::PipelineOptions pipeline;     // TrainedModel sets the first trained stage
  std::vector<std::string> freeze;        // patterns of FrozenParameters
  const kernels::Table* table = nullptr;  // kernels of forward and backward; null: the device's
  SpanListener* spans = nullptr;          // called at every span of forward and backward
  int64_t timing_level = 0;               // level of detail of StepReport::times
};

// True if tokens of a batch may have weights other than 0 and 1, which its loss in the totals then
// has as factors, with the loss scale.
inline bool weighs_losses(const corpus::HostBatch& batch, settings::LossScope scope) {
  return !batch.sources.empty() && scope == settings::LossScope::token;
}

inline constexpr std::string_view kEntropy = "entropy";  // a metric
inline std::string source_metric(const std::string& source) { return "loss/" + source; }

// Parts of a step, one after another.
enum class StepPart { forward_backward, norm, update };
std::string_view name(StepPart part);  // "forward and backward", "gradient norm", "update"

// Called for the spans of a step's forward and backward, and for its parts.
class StepListener : public SpanListener {
 public:
  virtual void began(StepPart) {}
  virtual void ended(StepPart) {}
};

// Objects of a step that its passes use and notify, borrowed.
struct PassPartners {
  const StepOptions& options;
  parallel::DataParallel& data_parallel;
  StepTotals& totals;
  StepTimer& timer;
  WorkReporter& reporter;
};

// Rows of what crosses a chunk's edges in a micro-batch.
models::BoundaryRows boundary_rows(const corpus::HostBatch& batch,
                                   const parallel::TensorParallel& tensor);

class MicroBatchPass final : public parallel::StageWork {
 public:
  // chunks: this rank's part of the model. All arguments are borrowed.
  MicroBatchPass(std::span<models::Stage* const> chunks, DType type, const parallel::Ranks& ranks,
                 Runtime& runtime, const PassPartners& partners);

  // Call before the micro-batches of a step, which are borrowed. stage: of the pipeline. rehearses:
  // nothing is captured.
  void begin_step(std::span<const corpus::HostBatch> micro_batches, double loss_scale, int stage,
                  bool rehearses);
  void end_step() { action_.reset(); }
  void drop();  // abandons a failed step
  StepListener* listen(StepListener* listener);
  StepListener* listener() const { return listener_; }

  const std::optional<parallel::Action>& action() const { return action_; }
  RecordedCounts recorded() const;
  // How many items of a micro-batch count: tokens, or what the objective counts.
  double counted(const corpus::HostBatch& batch) const;
  int64_t own_memory(MemoryClass memory_class) const;
  int64_t most_own_memory(MemoryClass memory_class) const;

  parallel::Payload forward(const parallel::Action& action,
                            const parallel::Payload& input) override;
  parallel::Payload backward(const parallel::Action& action, const parallel::Payload& gradient,
                             bool weights) override;
  void weight(int chunk, int micro_batch) override;
  parallel::Payload receive_into(int chunk, int micro_batch, bool gradient) override;

 private:
  // State of a micro-batch of a chunk between its forward and the end of its backward.
  struct InFlight {
    corpus::DeviceBatch batch;
    bool taken = false;
    const nn::Batch* filled = nullptr;  // result of batch.fill()
    std::unique_ptr<Tape> tape;
    std::optional<models::ForwardInParts> pass;  // forward pass in progress
    // From and to the virtual stages before and after the chunk, in the order of its edges; with an
    // objective, the last stage's output is the values that the objective reads, and `gradient`
    // that of them.
    std::vector<Var> inputs, outputs;
    Tensor gradient;
    std::unique_ptr<StepGraphs::Slot> graph;  // null if micro-batches are not captured
  };
  InFlight& take_place(const parallel::Action& action);
  static std::vector<double> auxiliary_weights(const Objective& objective,
                                               const corpus::HostBatch& batch);
  InFlight& in_flight(int chunk, int micro_batch) {
    return in_flight_[place_of(chunk, micro_batch)];
  }
  size_t& place_of(int chunk, int micro_batch);
  void report_sources(InFlight& slot, const Tensor& loss) const;
  std::vector<ObjectiveTerms::Metric> losses_by_source(const corpus::HostBatch& batch,
                                                       std::span<const double> values,
                                                       std::span<const std::string> names) const;
  void report_entropy(InFlight& slot, const Tensor& entropies) const;
  const models::Stage& stage(int chunk) const { return *chunks_[static_cast<size_t>(chunk)]; }
  void make_tape(InFlight& slot);
  void drop_tapes();
  // True if a virtual stage before the chunk has a trainable parameter.
  bool trains_before(int chunk) const;
  Bundle input_of(InFlight& slot, const parallel::Action& action, const parallel::Payload& input);
  parallel::Payload output_of(InFlight& slot, const parallel::Action& action, const Bundle& out);
  void apply_objective(InFlight& slot, const parallel::Action& action, const Bundle& out);
  parallel::Payload forward_of(InFlight& slot, const parallel::Action& action,
                               const parallel::Payload& input);
  parallel::Payload forward_part(const parallel::Action& action, const parallel::Payload& input);
  parallel::Payload backward_part(const parallel::Action& action,
                                  const parallel::Payload& gradient);
  static void set_gradient(InFlight& slot, const parallel::Payload& received);
  parallel::Payload backward_of(InFlight& slot, const parallel::Action& action,
                                const parallel::Payload& gradient, bool weights);
  parallel::Payload input_gradient(InFlight& slot, const parallel::Action& action) const;
  void end(InFlight& slot);
  StepGraphs::Pass graph_pass(InFlight& slot, const parallel::Action& action, bool sends) const;
  // Forms of what crosses an edge of a chunk, and memory for it.
  std::vector<models::TensorForm> forms(int chunk, int micro_batch, models::Edge edge) const;
  parallel::Payload message(std::span<const models::TensorForm> forms,
                            std::string_view label) const;
  bool recordable(int micro_batch) const;

  std::vector<models::Stage*> chunks_;
  DType type_;
  const parallel::Ranks& ranks_;
  parallel::TensorParallel tensor_;
  Runtime& runtime_;
  PassPartners with_;
  std::optional<StepGraphs> graphs_;
  std::vector<InFlight> in_flight_;
  std::vector<size_t> places_;                  // index in `in_flight_` by chunk and micro-batch
  std::span<const corpus::HostBatch> batches_;  // of the current step
  double loss_scale_ = 1;
  bool rehearses_ = false;
  StepListener* listener_ = nullptr;
  std::optional<parallel::Action> action_;
};

}  // namespace megatron::training
