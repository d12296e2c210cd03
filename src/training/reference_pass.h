// Log-probabilities of a reference model, which objectives compare the trained one with.
#pragma once

#include <span>
#include <vector>

#include "data/dataset.h"
#include "settings/data_settings.h"
#include "training/trained_model.h"

namespace megatron::training {

// Where the log-probabilities come from: a second model (ReferenceModel), the trained one without
// its adapter (BaseReference), or a pass before the run (stored_reference.h).
class ReferenceSource {
 public:
  virtual ~ReferenceSource() = default;
  // Sets the log-probabilities of the labels that count in each micro-batch's whole sequences
  // (HostBatch::whole().reference), on the ranks that evaluate objectives. set: which data set the
  // micro-batches' samples are of. Collective.
  virtual void fill(const data::Dataset& set, std::span<corpus::HostBatch> micro_batches) = 0;
};

// A second, frozen model of the same shape in the layout of the trained one, without dropout. It
// runs forward before each step and evaluation pass.
class ReferenceModel final : public ReferenceSource {
 public:
  // Parameters and states must be filled before the first fill(). All arguments are borrowed.
  // model: the trained one's definition, without an adapter.
  ReferenceModel(TrainedModel& trained, const models::Model& model, DType type,
                 const parallel::LayerPlacement& placement);

  std::span<const parallel::Shard> shards() const { return data_parallel_.shards(); }
  std::vector<nn::ModuleState*> states() const;
  void filled() { data_parallel_.parameters_changed(); }

  void fill(const data::Dataset& set, std::span<corpus::HostBatch> micro_batches) override;

 private:
  ModelParts parts_;
  parallel::DataParallel data_parallel_;
  LossPass pass_;
};

// The trained model without its adapter, which is all that is trained. Its products are computed in
// the type of the model, as in a ReferenceModel.
class BaseReference final : public ReferenceSource {
 public:
  BaseReference(TrainedModel& trained, DType type);  // borrowed
  void fill(const data::Dataset& set, std::span<corpus::HostBatch> micro_batches) override;

 private:
  TrainedModel& trained_;
  LossPass pass_;
};

// True if a run of the model has a BaseReference.
bool has_base_reference(const models::Model& model, const settings::DataSettings& settings);

}  // namespace megatron::training
