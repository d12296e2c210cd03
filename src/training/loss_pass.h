// Computes the losses of tokens through all pipeline stages, without gradients.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline.h"
#include "training/step.h"
#include "training/work_reporter.h"

namespace megatron::training {

class ReferenceSource;

// The parts of a model that a pass needs, whether or not the model is being trained.
struct EvaluatedModel {
  std::span<models::Stage* const> chunks;
  DType type = DType::f32;
  const parallel::Ranks* ranks = nullptr;
  SpanListener* parameters = nullptr;  // gathers parameters for each span; null: they are in place
};

class LossPass final : private parallel::StageWork {
 public:
  // All arguments are borrowed.
  LossPass(const EvaluatedModel& model, Runtime& runtime, const StepOptions& options);

  // Names the phase of the following passes for hang reports, e.g. "validation"; before the first
  // call it is "evaluation".
  void begin(std::string_view phase);
  // Called with the losses of each micro-batch's sequences, in ascending order, on the stage with
  // the head only: of the tokens that this rank holds; with an objective, of whole sequences on the
  // first context-parallel rank, and zero on the others. A sequence's loss does not depend on the
  // others.
  using OnLosses = std::function<void(int micro_batch, std::span<const LossSum> of_sequences)>;
  // Collective over the stages, all of which pass the same micro-batches. Without data (meta),
  // losses are zero.
  void run(std::span<const corpus::HostBatch> micro_batches, const OnLosses& on_losses);
  // The same with the values that objectives read (Objective::evaluate), of whole sequences, on all
  // ranks with the head. Without data: empty.
  using OnValues = std::function<void(int micro_batch, std::vector<double> values)>;
  void run_values(std::span<const corpus::HostBatch> micro_batches, const OnValues& on_values);
  // Whether the model's adapters act in the following passes; they do at first.
  void use_adapters(bool uses) { uses_adapters_ = uses; }
  // Number of micro-batches that keep all stages busy.
  size_t together() const;
  const Objective* objective() const { return options_.objective.get(); }
  // Names of the metrics that run() computes (LossSum::metrics): the objective's, or those of the
  // model's depths of prediction.
  std::vector<std::string> metrics() const;
  // What evaluations complete their micro-batches with, for the objective; null: nothing. Borrowed.
  void take_reference(ReferenceSource* reference) { reference_ = reference; }
  ReferenceSource* reference() const { return reference_; }
  const models::Model& model() const { return model_.chunks.front()->model(); }
  const parallel::Ranks& ranks() const { return *model_.ranks; }
  Runtime& runtime() const { return runtime_; }

 private:
  parallel::Payload forward(const parallel::Action& action,
                            const parallel::Payload& input) override;
  parallel::Payload backward(const parallel::Action& action, const parallel::Payload& gradient,
                             bool weights) override;
  void weight(int chunk, int micro_batch) override;
  parallel::Payload receive_into(int chunk, int micro_batch, bool gradient) override;
  void run_all(std::span<const corpus::HostBatch> micro_batches);
  std::vector<double> objective_values(const models::Stage& stage, Tape& tape, const Bundle& out,
                                       const corpus::HostBatch& host, const nn::Batch& batch,
                                       bool squares);
  std::vector<LossSum> token_losses(const models::Stage& stage, Tape& tape, const Bundle& out,
                                    const corpus::HostBatch& host, const nn::Batch& batch);
  std::vector<LossSum> objective_losses(const models::Stage& stage, Tape& tape, const Bundle& out,
                                        const corpus::HostBatch& host, const nn::Batch& batch);

  EvaluatedModel model_;
  bool uses_adapters_ = true;
  WorkReporter work_reporter_;
  std::string phase_ = "evaluation";
  int64_t done_ = 0;  // micro-batches completed in this phase
  Runtime& runtime_;
  StepOptions options_;
  parallel::Pipeline pipeline_;
  std::optional<corpus::DeviceBatch>
      device_batch_;  // exists only during run(), so its memory is released between runs
  std::span<const corpus::HostBatch> batches_;
  const OnLosses* on_losses_ = nullptr;  // either this one or the other
  const OnValues* on_values_ = nullptr;
  ReferenceSource* reference_ = nullptr;
};

}  // namespace megatron::training
