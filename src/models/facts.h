// Family-independent facts about a model for the rest of the program; each family computes them
// from its value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/activation.h"
#include "parallel/seen_tokens.h"

namespace megatron::models {

// The largest tables.
constexpr int64_t kMaxVocabulary = 1 << 28, kMaxPositions = 1 << 28;

enum class Positions { none, learned, rotary };

// How scores become probabilities, by problem_type in config.json: none for regression; sigmoid for
// one label otherwise, and for several that do not exclude each other.
enum class ScoreActivation { none, sigmoid, softmax };

// Multi-latent attention: widths of the latents of queries (0: none) and of keys and values, and of
// the rotated part of a head's key.
struct LatentFacts {
  int64_t query_rank = 0, rank = 0, rotated = 0, value_size = 0;
};

struct AttentionFacts {
  int64_t heads = 0, key_heads = 0, head_size = 0;
  bool qkv_bias = false;
  std::optional<LatentFacts> latent;
};

struct StateSpaceFacts {
  int64_t heads = 0, head_size = 0, groups = 0, states = 0;
};

struct FeedForwardFacts {
  int64_t width = 0;
  kernels::Activation activation = kernels::Activation::gelu_tanh;
  bool gated = false, bias = false;
};

struct ExpertFacts {
  int64_t count = 0, chosen = 0;  // experts per layer; most experts per token
  FeedForwardFacts each;
  int64_t latent = 0;        // input and output width of experts; 0: the hidden size
  int64_t shared_width = 0;  // width of the expert that all tokens use; 0: none
  bool shared_gate = false;
  std::vector<bool> layers;  // which layers have experts
};

// Multi-token prediction (models/decoder/value.h).
struct PredictionFacts {
  int64_t depths = 0;    // layers that predict further tokens
  int64_t left_out = 0;  // those that the model's files have and the model has not
  double loss_scale = 0;
  bool detached = false;  // their losses train only these layers
};

// Which tokens have scores.
//   last_token   the last one that is not padding
//   first_token  a text's first one
//   mean         each of a text's tokens has those of their mean
//   each_token   every token has its own: labels of tokens
//   span         the same, with two scores: of the first and of the last token of an answer
enum class ScoredTokens { last_token, first_token, mean, each_token, span };

struct ModelFacts {
  std::string_view family;     // model_type of its config.json
  int64_t num_layers = 0;      // all of them
  int64_t encoder_layers = 0;  // the first ones, which read a text of their own; 0: none
  int64_t start_token = -1;    // before an encoder-decoder's first predicted token; -1: unknown
  int64_t hidden_size = 0;     // width of the residual stream
  int64_t vocab_size = 0;
  // Positions that the model has tables for: the longest text that it can compute.
  int64_t max_position_embeddings = 0;
  // Tokens of the longest text that the model is made for; inference uses it as its limit. It
  // exceeds the positions in config.json with linear, dynamic and YaRN scaling. ModelChanges can
  // set it.
  int64_t context_length = 0;
  Positions positions = Positions::none;
  int64_t position_offset = 0;  // index in the table of learned positions of a text's first token
  int64_t token_types = 0;      // rows of the table of token types
  int64_t left_out_token = -1;  // whose embeddings are left out (models/decoder/value.h); -1: none
  int64_t parameters = 0;
  // Parts of the layers, as in the first layer that has such a part; nullopt if no layer has one.
  std::optional<AttentionFacts> attention;
  std::optional<StateSpaceFacts> state_space;
  // Windows and chunks of attention, each once.
  std::vector<parallel::AttentionReach> reaches;
  // Transformer blocks whose weights layers share, and the layers that use them.
  int64_t shared_blocks = 0, shared_uses = 0;
  // With state spaces: the blocks of all layers in Megatron-LM's letters, M (state space), *
  // (attention), + (multi-latent attention), - (MLP), E (experts); empty if they have other ones.
  std::string hybrid_pattern;
  std::optional<FeedForwardFacts> feed_forward;  // dense
  std::optional<ExpertFacts> experts;
  // Attention of the layers sees later tokens, too: an encoder alone, not an encoder-decoder.
  bool two_sided = false;
  bool rms_norm = false;  // norms do not subtract the mean or add a bias
  bool tied = true;       // the output layer shares the token embedding
  PredictionFacts prediction;
  // If > 0, this is not a language model: it scores texts or their tokens (`scored`), by one number
  // (a reward model) or with one logit per class.
  int64_t score_labels = 0;
  ScoredTokens scored = ScoredTokens::last_token;
  bool multi_label = false;  // each class by itself applies or not
  // A language model whose logits are of the masked token itself, not of the next one.
  bool predicts_masked = false;
  bool pair_head = false;  // it also tells whether the second of two texts follows the first
  // An encoder without any head, whose output is that of its last layer.
  bool headless = false;
  // The padding token, which a score at the last token skips, and which an encoder's files name;
  // -1: none.
  int64_t score_padding = -1;
  std::vector<std::string> label_names;  // of each score
  ScoreActivation score_activation = ScoreActivation::none;
  // Initial values of training.
  double hidden_dropout = 0, attention_dropout = 0, init_std = 0.02;

  // Returns "2 layers, hidden 64, ...", a line for the console or a report.
  std::string summary() const;
};

}  // namespace megatron::models
