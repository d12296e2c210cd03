// Common parts of the config.json of encoders: the head that architectures names, and the keys of
// BERT's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/families/config_json.h"

namespace megatron::models {

// What transformers' classes of an encoder compute from its last layer: ForPreTraining,
// ForMaskedLM, ForSequenceClassification, ForTokenClassification and ForQuestionAnswering; none:
// the hidden states alone (BertModel).
enum class EncoderHead { pretraining, masked, sequence, tokens, answers, none };

// The head of the class <prefix>For... or <prefix>Model that `architectures` names; `masked`
// without that key. known: the heads that the family can have, besides `none`. Throws Error that
// lists them.
EncoderHead encoder_head(const Json& config, std::string_view prefix,
                         std::vector<EncoderHead> known);
EncoderHead head_of(const DecoderValue& value);
void write_head(const DecoderValue& value, std::string_view prefix, Json& config);

// Transforms before the output layer of each head. masked: of the language model; pooled: of
// classifiers of texts; each_token: of classifiers of tokens, and of answers.
struct EncoderHeads {
  HeadTransform masked;
  std::optional<HeadTransform> pooled, each_token;
  bool output_bias = true;
};
// Sets the head of a value whose layers have been read.
void set_head(const Json& config, EncoderHead head, const EncoderHeads& heads, DecoderValue& value);
// Replaces the head of `value` by a score head: for each token or for answers (span) with the
// transform `each_token`, otherwise for the first token with `pooled`.
void set_scores(DecoderValue& value, ScoredTokens scored,
                const std::optional<HeadTransform>& pooled,
                const std::optional<HeadTransform>& each_token = {});

// Throws Error unless the heads divide the hidden size.
void check_heads(int64_t hidden_size, int64_t heads);

// BERT's layers and keys (Devlin et al. 2019): norms of sums, biases, attention to both sides,
// learned positions, a norm of the embeddings.
DecoderValue read_bert_layers(const Json& config);
Json write_bert_layers(const DecoderValue& value);
// BERT's tensors of layers, whose names begin with this prefix.
FamilyTensors bert_tensors(const std::string& prefix);
inline constexpr DecoderFamily::Key kBertKeys[] = {
    {"--hidden-dropout", "hidden_dropout_prob"},
    {"--attention-dropout", "attention_probs_dropout_prob"},
    {"--norm-epsilon", "layer_norm_eps"}};
// Adds the weight and the bias of the score head, whose bias has this name in the checkpoint, for
// example "classifier.bias". The map keeps a view of it.
void name_score_head(std::string_view bias, FamilyTensors& map);

}  // namespace megatron::models
