// The one composition of transformers: any DecoderValue, whole or a part of it.
//
// The first part of an encoder-decoder looks up the texts of both stacks. The embeddings of the
// decoder's text bypass the encoder's layers ("target"), so that no other part needs the tables.
#pragma once

#include <memory>
#include <vector>

#include "models/decoder/head_transform.h"
#include "models/decoder/layer.h"
#include "models/decoder/prediction.h"
#include "models/decoder/value.h"
#include "models/model.h"
#include "models/stage.h"
#include "nn/dropout.h"
#include "nn/embedding.h"

namespace megatron::models {

class DecoderModel final : public Stage {
 public:
  // model: the whole model, which owns `value`; that has been checked. placement: of its family.
  // adapters: null, or what the model owns.
  DecoderModel(Model model, const DecoderValue& value, const nn::Builder::PlacementOf& placement,
               const nn::AdapterRules* adapters,
               const std::optional<LowPrecisionLayers>& low_precision, Runtime& runtime, DType type,
               uint64_t seed, const parallel::ModelPart& part, const parallel::ModelRanks& ranks);

  const Model& model() const override { return model_; }
  const parallel::ModelPart& part() const override { return part_; }

  std::span<const Block> blocks() const override { return blocks_; }
  std::span<const BoundaryTensor> boundary(Edge edge) const override {
    return edge == Edge::entry ? entry_ : exit_;
  }
  Tensor loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const override;
  std::vector<PredictionLosses> prediction_losses(Tape& tape, const Bundle& in,
                                                  const nn::Batch& batch) const override;
  Var logits(Tape& tape, const Bundle& in, const nn::Batch& batch) const override;
  Var pair_logits(Tape& tape, const Bundle& in) const override;
  Var objective_values(Tape& tape, const Bundle& in, const nn::Batch& batch) const override;
  Tensor entropies(Tape& tape, const Bundle& in, const nn::Batch& batch) const override;
  Var final_norm(Tape& tape, const Bundle& in) const override;
  Var output_input(Tape& tape, const Bundle& in) const override;
  const Span& head() const override { return head_; }
  std::span<parallel::ParameterSpec* const> parameters() const override { return parameters_; }
  std::span<const std::pair<std::string, ops::LowRank>> adapters() const override {
    return adapters_;
  }
  std::span<const std::pair<std::string, ops::ExpertLowRank>> expert_adapters() const override {
    return expert_adapters_;
  }

  std::span<nn::ModuleState* const> states() const override { return states_; }
  std::span<nn::StepSum* const> step_sums() const override { return step_sums_; }

  Tensor loss_logits(Tape& tape, const Bundle& in) const override;
  std::vector<nn::LayerCache> layer_caches() const override;

 private:
  // Depths of prediction that this part computes, and those whose losses it computes.
  int64_t depths() const { return part_.has_predictions() ? value_.prediction.depths : 0; }
  int64_t predicted_losses() const { return part_.head ? value_.prediction.depths : 0; }
  // True if the final norm is applied in this part: the depths follow it.
  bool has_final_norm() const {
    return value_.has_final_norm &&
           (value_.prediction.depths > 0 ? part_.has_predictions() : part_.head);
  }
  void build_table(nn::Builder& builder);
  void build_embedding(nn::Builder& builder, uint64_t seed);
  void build_positions(Runtime& runtime, DType type);
  void build_layers(nn::Builder& builder, const std::optional<LowPrecisionLayers>& low_precision,
                    uint64_t seed);
  void build_head(nn::Builder& builder, const std::optional<LowPrecisionLayers>& low_precision);
  void build_depths(nn::Builder& builder, uint64_t seed);
  void list_parameters(nn::Builder& builder);
  void list_states(nn::Builder& builder);
  void list_blocks();
  void list_boundary();
  bool ends_encoder(int64_t i) const;
  Bundle embed(Tape& tape, const nn::Batch& batch, Phase phase) const;
  Var embedded_text(Tape& tape, const nn::Batch& batch, const nn::Dropout& dropout,
                    Phase phase) const;
  Bundle end_encoder(Tape& tape, const Bundle& in, const nn::Batch& batch) const;
  Var embedded(Tape& tape, const Tensor& tokens, int use) const;
  Var without_left_out(Tape& tape, const Var& x_TH, const nn::Batch& batch) const;
  // Input of the output layer, computed from the final norm's output. batch: needed only for a
  // model that scores the means of texts.
  Var head_input(Tape& tape, const Var& x_TH, const nn::Batch* batch = nullptr) const;
  Var head_input(Tape& tape, const Bundle& in, const nn::Batch* batch = nullptr) const {
    return head_input(tape, final_norm(tape, in), batch);
  }
  Var pair_values(Tape& tape, const Var& x_TH, const nn::Batch& batch) const;
  void build_pair_head(nn::Builder& builder);
  void build_score_head(nn::Builder& builder);

  // The use of a table that serves as the output layer.
  struct Output {
    const nn::VocabularyTable* table = nullptr;
    int use = 0;
  };

  Model model_;
  const DecoderValue& value_;  // of model_
  parallel::ModelPart part_;
  parallel::TensorParallel tensor_;
  parallel::ContextParallel context_;
  double embedding_scale_;
  PositionTables positions_;
  std::unique_ptr<nn::VocabularyTable> embedding_, own_output_, pair_output_;
  std::unique_ptr<nn::PositionTable> position_embedding_, token_type_embedding_;
  std::unique_ptr<nn::AddNorm> embedding_norm_;
  std::unique_ptr<nn::Dropout> embedding_dropout_, target_dropout_;
  int prediction_use_ = 0;  // which use of the embedding is that by multi-token prediction
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::vector<std::vector<Parameter*>> layer_parameters_;  // parameters that each layer uses
  std::vector<std::unique_ptr<PredictionDepth>> depths_;
  std::unique_ptr<nn::AddNorm> encoder_norm_, final_norm_;            // null: there is none
  std::unique_ptr<HeadTransformLayer> head_transform_, pair_pooler_;  // or none
  Output output_;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> owned_;
  std::vector<parallel::ParameterSpec*> parameters_;
  std::vector<std::pair<std::string, ops::LowRank>> adapters_;
  std::vector<std::pair<std::string, ops::ExpertLowRank>> expert_adapters_;
  std::vector<std::unique_ptr<nn::ModuleState>> owned_states_;
  std::vector<nn::ModuleState*> states_;
  std::vector<Block> blocks_;
  std::vector<std::string> outputs_;  // names of the trunk's and the depths' (PredictionDepth)
  std::vector<BoundaryTensor> entry_, exit_;
  std::vector<std::unique_ptr<nn::StepSum>> owned_step_sums_;
  std::vector<nn::StepSum*> step_sums_;
  Span head_;
};

}  // namespace megatron::models
