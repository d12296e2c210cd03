// GPT-2 and Llama from one composition (Radford et al. 2019; Touvron et al. 2023): pre-norm decoder
// layers.
#pragma once

#include <memory>
#include <vector>

#include "models/gpt/config.h"
#include "models/model.h"
#include "models/stage.h"
#include "nn/attention.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/mlp.h"

namespace megatron::models {

class DecoderLayer {
 public:
  // Named "layers.<index>" of the model; layer `state_layer` of a SequenceState.
  DecoderLayer(nn::Builder& builder, int64_t index, int64_t state_layer, const GptConfig& config,
               const nn::RotaryTable* rotary, uint64_t seed);
  Bundle forward(Tape& tape, const Bundle& in, const nn::Batch& batch, Phase phase) const;

  int64_t kv_heads() const { return attention_.kv_heads(); }  // of this rank

 private:
  DecoderLayer(nn::Builder& builder, const std::string& name, int64_t state_layer,
               const GptConfig& config, const nn::RotaryTable* rotary, uint64_t seed);

  nn::AddNorm attention_norm_;
  nn::Attention attention_;
  nn::AddNorm mlp_norm_;
  nn::Mlp mlp_;
  nn::Dropout attention_dropout_, mlp_dropout_;
};

class GptModel final : public Stage {
 public:
  // Model::build(); config is final.
  GptModel(const GptConfig& config, Runtime& runtime, DType type, uint64_t seed,
           const parallel::ModelPart& part, const parallel::ModelRanks& ranks);

  const Model& model() const override { return model_; }
  const parallel::ModelPart& part() const override { return part_; }

  std::span<const Segment> segments() const override { return segments_; }
  Tensor loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const override;
  Var logits(Tape& tape, const Bundle& in) const override;
  Var final_norm(Tape& tape, const Bundle& in) const override;
  const Span& head() const override { return head_; }
  std::span<parallel::ParameterSpec* const> parameters() const override { return parameters_; }

  Tensor loss_logits(Tape& tape, const Bundle& in) const override;
  nn::SequenceStateShape state_shape(int64_t sequences, int64_t capacity) const override;

 private:
  void build_embedding(nn::Builder& builder, uint64_t seed);
  void build_layers(nn::Builder& builder, DType type, uint64_t seed);
  void build_head(nn::Builder& builder);
  void list_parameters(nn::Builder& builder);
  void list_segments();
  Bundle embed(Tape& tape, const nn::Batch& batch, Phase phase) const;

  // Which use of a table the output layer is.
  struct Output {
    const nn::VocabularyTable* table = nullptr;
    int use = 0;
  };

  Model model_;
  GptConfig config_;
  Runtime& runtime_;
  parallel::ModelPart part_;
  nn::RotaryTable rotary_;
  std::unique_ptr<nn::VocabularyTable> embedding_, own_output_;
  std::unique_ptr<nn::PositionTable> position_embedding_;
  std::unique_ptr<nn::Dropout> embedding_dropout_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::unique_ptr<nn::AddNorm> final_norm_;
  Output output_;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> owned_;
  std::vector<parallel::ParameterSpec*> parameters_;
  std::vector<Segment> segments_;
  Span head_;
};

}  // namespace megatron::models
