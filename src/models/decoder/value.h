// A transformer as a value: a list of layers and a few numbers, from which one composition
// (models/decoder/model.h) builds any of them. An encoder (BERT) has attention to both sides and
// other parts around its layers; an encoder-decoder (T5) has the layers of both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "kernels/activation.h"
#include "models/decoder/feed_forwards/list.h"
#include "models/decoder/mixers/list.h"
#include "models/facts.h"
#include "nn/norm.h"
#include "nn/rotary.h"

namespace megatron::models {

struct LayerValue {
  // sequential: x += mixer(norm(x)), then x += feed_forward(norm(x)). parallel: x += mixer(norm(x))
  // + feed_forward(norm(x)) with two norms of the same x, or with one (Wang & Komatsuzaki 2021).
  enum class Order { sequential, parallel, parallel_one_norm };

  MixerValue mixer;
  // Attention to the encoder's output, between mixer and feed-forward: x += cross(norm(x)).
  std::optional<nn::AttentionConfig> cross;
  FeedForwardValue feed_forward;
  Order order = Order::sequential;
  nn::NormConfig norm;  // for all norms of the layer
  // Norms before mixer and feed-forward (of x), and after them (of what is added to x). Orders
  // other than sequential only have those before.
  bool norm_before = true, norm_after = false;
  // The norms are those of the sums instead: x = norm(x + mixer(x)), x = norm(x + feed_forward(x))
  // (Vaswani et al. 2017). Only of the sequential order, without the other two.
  bool norm_of_sum = false;
  bool mixer_norm = true;          // false: the mixer reads x itself, although norm_before is set
  double residual_multiplier = 1;  // factor of what is added to x

  bool operator==(const LayerValue&) const = default;
  // Also of a mixer of several parts.
  const nn::AttentionConfig* attention() const {
    if (const auto* hybrid = std::get_if<HybridConfig>(&mixer)) return &hybrid->attention;
    if (const auto* shared = std::get_if<SharedBlockConfig>(&mixer)) return &shared->attention;
    return std::get_if<nn::AttentionConfig>(&mixer);
  }
  nn::AttentionConfig* attention() {
    return const_cast<nn::AttentionConfig*>(std::as_const(*this).attention());
  }
  const nn::StateSpaceConfig* state_space() const {
    if (const auto* hybrid = std::get_if<HybridConfig>(&mixer)) return &hybrid->state_space;
    if (const auto* shared = std::get_if<SharedBlockConfig>(&mixer)) return &shared->state_space;
    return std::get_if<nn::StateSpaceConfig>(&mixer);
  }
  const nn::MlpConfig* mlp() const { return std::get_if<nn::MlpConfig>(&feed_forward); }
  nn::MlpConfig* mlp() { return std::get_if<nn::MlpConfig>(&feed_forward); }
  const nn::MoeConfig* moe() const { return std::get_if<nn::MoeConfig>(&feed_forward); }
  nn::MoeConfig* moe() { return std::get_if<nn::MoeConfig>(&feed_forward); }
};

// Multi-token prediction (DeepSeek-AI 2024, section 2.2): depth k = 1, 2, ... predicts the token k
// + 1 places ahead. With h_0 the trunk's output after its final norm,
//   h_k = norm(layer(projection [norm(embedding of the k-th next token) | norm(h_{k-1})])),
// and the model's own output layer gives the logits of h_k. Only training computes the depths.
struct PredictionValue {
  int64_t depths = 0;  // 0: none
  // Depths in the files that the model was read from, which it leaves out.
  int64_t left_out = 0;
  LayerValue layer;         // of every depth
  double loss_scale = 0.1;  // factor of the mean of their losses, relative to that of the trunk
  bool detached = false;    // their losses have no gradient in trunk, embedding and output layer

  bool operator==(const PredictionValue&) const = default;
};

// What comes between the final norm and the output layer.
//   dense_norm  norm(activation(x w^T + b)), before the vocabulary of a masked language model
//               (Devlin et al. 2019)
//   dense       activation(x w^T + b), before the labels of a text
//   pooler      tanh(x w^T + b), the same
struct HeadTransform {
  enum class Kind { dense_norm, dense, pooler };
  Kind kind = Kind::dense_norm;
  kernels::Activation activation = kernels::Activation::gelu_erf;
  bool bias = true;
  nn::NormConfig norm;

  bool operator==(const HeadTransform&) const = default;
  int64_t parameters(int64_t hidden) const;
};

// problem_type in config.json. by_labels: regression for one label, single_label_classification for
// several. classification: the latter for one label. unnamed: the key is absent. multi_label: each
// of several labels applies to a text or not.
enum class ScoreProblem { by_labels, unnamed, classification, multi_label };

struct DecoderValue {
  int64_t vocab_size = 0, hidden_size = 0, max_position_embeddings = 0;
  std::optional<int64_t> context;  // overrides context_length()'s rule; not stored in files
  bool learned_positions = false;
  int64_t position_offset = 0;  // index in the table of positions of a text's first token
  int64_t token_types = 0;      // rows of a table of types that is added as well; 0: none
  std::optional<nn::NormConfig> embedding_norm;  // of the sum of all tables
  // The token for masked ones, whose embeddings are left out and those of the rest scaled up, as
  // ESM-2 does (Lin et al. 2023, A.1); -1: no token.
  int64_t left_out_token = -1;
  double embedding_scale = 1;                      // factor of embeddings
  bool rounds_embedding_scale = false;             // rounds it to the model's type, as Gemma does
  std::map<std::string, nn::RotaryConfig> rotary;  // by the name that layers use
  std::vector<LayerValue> layers;
  // The first layers, if > 0, are those of an encoder, which reads texts of its own; a norm like
  // the final one follows them, and all others have cross attention to its output. Both read the
  // same tables of embeddings.
  int64_t encoder_layers = 0;
  // The token before an encoder-decoder's first predicted one; -1: unknown.
  int64_t start_token = -1;
  PredictionValue prediction;
  nn::NormConfig final_norm;
  bool has_final_norm = true;
  // Masked language model: a token's logits are of the token itself, not of the next one.
  bool predicts_masked = false;
  std::optional<HeadTransform> head_transform;  // not of a model with scores
  // An encoder without a head, whose output is that of its last layer. head_transform is the
  // transform that a head would have.
  bool headless = false;
  bool output_bias = false;
  double logits_scale = 1, logits_soft_cap = 0;  // soft cap 0: none
  bool untied = false;                           // separate output weights
  // If > 0, the model has no language-model head but a score of this many values (class or reward)
  // of these tokens.
  int64_t score_labels = 0;
  ScoredTokens scored = ScoredTokens::last_token;
  std::optional<HeadTransform> score_transform;
  bool score_bias = false;
  // A language model that also tells, from a pooler at the first token, whether the second of two
  // texts follows the first (two labels; Devlin et al. 2019, 3.1).
  bool pair_head = false;
  int64_t score_pad_token =
      -1;  // a text's last token is the last one with another id than this; -1: the last of all
  std::vector<std::string> score_label_names;  // [score_labels]
  ScoreProblem score_problem = ScoreProblem::by_labels;

  double hidden_dropout = 0, attention_dropout = 0;
  nn::RouterTraining router;
  int64_t mlp_chunks = 1;  // of tokens in feed-forward blocks without experts (nn/mlp.h)
  // Initial values: standard deviation of matrices, divided by sqrt(2 x layers) for those that
  // produce the output of a block (sqrt(layers) if no layer has more than one block); of the
  // embeddings, if it differs; or Glorot & Bengio 2010.
  double init_method_std = 0.02;
  std::optional<double> embedding_init_std;
  bool xavier_init = false;
  // Width of this model relative to the model whose settings are transferred (muP; Yang et al.
  // 2022): matrices between embedding and output are initialized with their standard deviation
  // divided by its square root, and optimizers scale their learning rates
  // (ParameterSpec::width_multiplier). It only affects training.
  double width_multiplier = 1;

  bool operator==(const DecoderValue&) const = default;
  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  // Layer by its index in tensor names, where the multi-token-prediction depths follow the layers.
  const LayerValue& layer(int64_t index) const {
    return index < num_layers() ? layers[static_cast<size_t>(index)] : prediction.layer;
  }
  // Number of tokens of the longest text that the model is made for: max_position_embeddings,
  // multiplied by the factor of linear and dynamic scaling; with YaRN, the original context times
  // the factor. With llama3, longrope and several named tables (Gemma 3), max_position_embeddings
  // is already that of the scaled model.
  int64_t context_length() const;
  // Number of positions in tables: enough for the texts of training and inference, or for a given
  // context.
  int64_t positions() const {
    return context ? *context : std::max(max_position_embeddings, context_length());
  }
  // Configuration of the first layer that has attention, a state space, an MLP or experts; null:
  // none has.
  const nn::AttentionConfig* first_attention() const;
  const nn::StateSpaceConfig* first_state_space() const;
  const nn::MlpConfig* first_mlp() const;
  const nn::MoeConfig* first_moe() const;

  // Throws Error naming values that are out of range or do not go together, and their flags.
  void check() const;
};

// Keys are the names of flags. Defaults are omitted, except sizes. If all layers are equal, their
// fields are at the top level; otherwise "layers" lists runs of equal layers.
Json to_json(const DecoderValue& value);
// Throws Error naming a key that is missing, unknown or of another type.
DecoderValue decoder_from_json(const Json& json);

}  // namespace megatron::models
