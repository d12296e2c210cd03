// Models with random weights, and their results without a state: one forward pass over all tokens.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <vector>

#include "base/philox.h"
#include "inference/generate.h"
#include "models/model_flags.h"
#include "models/stage.h"
#include "nn/sequence_state.h"

namespace megatron::testing {

using Tokens = std::vector<int32_t>;

inline models::ModelFlags gpt2_shape(int64_t layers, int64_t hidden, int64_t heads,
                                     int64_t vocabulary, int64_t positions) {
  models::ModelFlags flags;
  flags.num_layers = layers;
  flags.hidden_size = hidden;
  flags.num_attention_heads = heads;
  flags.vocab_size = vocabulary;
  flags.hidden_dropout = flags.attention_dropout = 0;
  flags.max_position_embeddings = positions;
  return flags;
}

// Rotary positions, shared key heads, RMSNorm, a gated block and untied output weights.
inline models::ModelFlags llama_shape(int64_t layers, int64_t hidden, int64_t heads,
                                      int64_t kv_heads, int64_t vocabulary, int64_t positions) {
  models::ModelFlags flags;
  flags.num_layers = layers;
  flags.hidden_size = hidden;
  flags.num_attention_heads = heads;
  flags.group_query_attention = true;
  flags.num_query_groups = kv_heads;
  flags.vocab_size = vocabulary;
  flags.position_embedding = models::PositionEmbedding::rope;
  flags.normalization = nn::Normalization::rms_norm;
  flags.swiglu = flags.untie = true;
  flags.add_bias_linear = false;
  flags.hidden_dropout = flags.attention_dropout = 0;
  flags.max_position_embeddings = positions;
  return flags;
}

class RandomModel {
 public:
  RandomModel(const models::ModelFlags& flags, DType type, int threads = 2)
      : RandomModel(models::model_from_flags(spread(flags), 0), type, threads) {}
  RandomModel(const models::Model& definition, DType type, int threads = 2)
      : runtime({DeviceKind::cpu, 0}, threads),
        owned_(definition.build(runtime, type, 1)),
        model(*owned_) {
    models::initialize(model, 7, runtime.stream());
  }
  DType type() const { return model.parameters()[0]->parameter.value.dtype(); }

  Runtime runtime;

 private:
  // Widely spread weights, so that the logits differ.
  static models::ModelFlags spread(models::ModelFlags flags) {
    if (*flags.hidden_size < 100) flags.init_method_std = 0.3;
    return flags;
  }

  const std::unique_ptr<models::Stage> owned_;

 public:
  models::Stage& model;
};

// Tokens of the smallest pages that a model can have.
inline int64_t least_block(const RandomModel& m) {
  return m.model.model()->facts().state_space ? 64 : 32;
}

inline Tokens random_tokens(int64_t count, int64_t vocabulary, uint64_t seed) {
  const RandomStream stream(seed, "tokens");
  Tokens tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(stream.bits(i) % static_cast<uint64_t>(vocabulary));
  return tokens;
}

inline Tensor integers(Runtime& runtime, const Tokens& values) {
  Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations),
                           {static_cast<int64_t>(values.size())}, DType::i32, "test");
  copy_from(t, std::span<const int32_t>(values));
  return t;
}

// Concatenates sequences of equal length for one pass. The labels are the next tokens; the last
// token of each has none.
inline nn::Batch whole_batch(RandomModel& m, const std::vector<Tokens>& sequences) {
  const auto length = sequences[0].size();
  Tokens tokens, positions, labels;
  std::vector<double> weights;
  for (const Tokens& s : sequences) {
    for (size_t t = 0; t < length; ++t) {
      tokens.push_back(s[t]);
      positions.push_back(static_cast<int32_t>(t));
      labels.push_back(t + 1 < length ? s[t + 1] : 0);
      weights.push_back(t + 1 < length ? 1 : 0);
    }
  }
  Tensor w = Tensor::empty(m.runtime.arena(MemoryClass::activations),
                           {static_cast<int64_t>(weights.size())}, DType::f32, "test");
  copy_from(w, std::span<const double>(weights));
  return {.layout = {.sequences = static_cast<int64_t>(sequences.size()),
                     .length = static_cast<int64_t>(length)},
          .tokens = integers(m.runtime, tokens),
          .positions = integers(m.runtime, positions),
          .labels = integers(m.runtime, labels),
          .loss_weights = w};
}

// Logits [T, V] of one sequence.
inline std::vector<float> whole_logits(RandomModel& m, const Tokens& tokens) {
  const nn::Batch batch = whole_batch(m, {tokens});
  Tape tape(m.runtime, Tape::Mode::infer);
  const Bundle out = models::forward(m.model, tape, {}, batch, models::Phase::evaluate);
  return to_floats(m.model.loss_logits(tape, out));
}

// Loss of each token of sequences of equal length, computed as in evaluation (infer) or in training
// steps (record).
inline std::vector<float> whole_losses(RandomModel& m, const std::vector<Tokens>& sequences,
                                       Tape::Mode mode = Tape::Mode::infer) {
  const nn::Batch batch = whole_batch(m, sequences);
  Tape tape(m.runtime, mode);
  const Bundle out = models::forward(m.model, tape, {}, batch, models::Phase::evaluate);
  return to_floats(models::head_loss(m.model, tape, out, batch));
}

}  // namespace megatron::testing
