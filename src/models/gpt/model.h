// GPT-2 and Llama from one composition (Radford et al. 2019; Touvron et al. 2023): pre-norm decoder
// layers.
#pragma once

#include <memory>
#include <vector>

#include "models/gpt/config.h"
#include "models/stage.h"
#include "nn/attention.h"
#include "nn/mlp.h"
#include "nn/sequence_state.h"

namespace megatron::models {

class DecoderLayer {
 public:
  // Named "layers.<index>".
  DecoderLayer(nn::Builder& builder, int64_t index, const GptConfig& config,
               const nn::RotaryTable* rotary, uint64_t seed);
  Bundle forward(Tape& tape, const Bundle& in, const nn::Batch& batch, Phase phase) const;

 private:
  DecoderLayer(nn::Builder& builder, const std::string& name, int64_t index,
               const GptConfig& config, const nn::RotaryTable* rotary, uint64_t seed);

  nn::AddNorm attention_norm_;
  nn::Attention attention_;
  nn::AddNorm mlp_norm_;
  nn::Mlp mlp_;
  kernels::DropoutArgs::Mask attention_dropout_, mlp_dropout_;
};

class GptModel final : public Stage {
 public:
  // Parameters are allocated, not filled: initialize() or checkpoint::load() does. seed: of
  // dropout. config is final.
  GptModel(const GptConfig& config, Runtime& runtime, DType type, uint64_t seed);

  std::span<const Segment> segments() const override { return segments_; }
  Tensor loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const override;
  Var logits(Tape& tape, const Bundle& in) const override;
  Var final_norm(Tape& tape, const Bundle& in) const override;
  const Span& head() const override { return head_; }
  std::span<parallel::Placed* const> parameters() const override { return parameters_; }

  // The logits that loss() is computed from: f32 (f64) [T,V], in every bit.
  Tensor loss_logits(Tape& tape, const Bundle& in) const;
  // Of a state that fits this model.
  nn::SequenceStateShape state_shape(int64_t sequences, int64_t capacity) const;

  const GptConfig& config() const { return config_; }
  void initialize(uint64_t seed);

 private:
  Bundle embed(Tape& tape, const nn::Batch& batch, Phase phase) const;

  GptConfig config_;
  Runtime& runtime_;
  nn::RotaryTable rotary_;
  Weight embedding_, position_embedding_, output_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::unique_ptr<nn::AddNorm> final_norm_;
  kernels::DropoutArgs::Mask embedding_dropout_;
  std::vector<std::unique_ptr<parallel::Placed>> owned_;
  std::vector<parallel::Placed*> parameters_;
  std::vector<Segment> segments_;
  Span head_;
};

}  // namespace megatron::models
