#include "nn/embedding.h"

#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/scale.h"

namespace megatron::nn {

VocabularyTable::VocabularyTable(Builder& builder, const std::string& name, int64_t vocabulary,
                                 int64_t hidden, parallel::Init init, std::span<const int> uses)
    : tensor_(builder.tensor()),
      weight_(builder
                  .add(name + ".weight", {vocabulary, hidden}, init,
                       {.uses = static_cast<int>(uses.size()),
                        .divisions = {{.axis = 0, .blocks = {vocabulary}}}})
                  .parameter),
      vocabulary_(vocabulary),
      first_(parallel::share_of(vocabulary, tensor_.size(), tensor_.rank()).global_begin) {
  for (size_t u = 0; u < uses.size(); ++u) weight_->uses[u].ops = uses[u];
}

void VocabularyTable::adapt_lookups(Builder& builder) {
  lookups_ = builder.add_table_adapter(*weight_);
  replaced_ = builder.add_token_rows(*weight_, AdaptedKind::embedding);
  const int look_ups = weight_->uses[0].ops;
  if (lookups_)
    for (const Weight& part : {lookups_->a, lookups_->b}) part.parameter->uses[0].ops = look_ups;
  if (replaced_) replaced_.rows.parameter->uses[0].ops = look_ups;
  const bool is_output = weight_->uses.size() > 1;
  if (!replaced_ || !is_output) return;
  ops::ReplacedRows rows = replaced_;
  rows.rows.use = 1;
  replace_output_rows(std::move(rows));
}

void VocabularyTable::adapt_output(Builder& builder) {
  output_ = builder.add_adapter(*weight_, AdaptedKind::output);
  replace_output_rows(builder.add_token_rows(*weight_, AdaptedKind::output));
}

void VocabularyTable::adapt_tied_output(Builder& builder) {
  replace_output_rows(builder.add_token_rows(*weight_, AdaptedKind::embedding));
}

void VocabularyTable::add_bias(Builder& builder, const std::string& name) {
  bias_ = builder.add(name, {vocabulary_}, zeros(),
                      {.divisions = {{.axis = 0, .blocks = {vocabulary_}}}});
}

void VocabularyTable::replace_output_rows(ops::ReplacedRows rows) {
  output_.replaced = std::move(rows);
  output_.matrix = *weight_;
}

Var VocabularyTable::look_up(Tape& tape, const Tensor& ids, int use) const {
  const auto rows = [&](const Weight& table, const ops::ReplacedRows& replaced) {
    return parallel::vocabulary_embedding(tape, ids, table, first_, tensor_, replaced);
  };
  const Var y = rows(Weight(*weight_, use), replaced_);
  if (!lookups_ || !tape.adapts()) return y;
  const Var inner = ops::scale(tape, rows(lookups_->a, {}), lookups_->scale);
  return ops::add(tape, y, ops::linear(tape, inner, lookups_->b));
}

Tensor VocabularyTable::loss(Tape& tape, const Var& x, const Tensor& labels, const Tensor& weights,
                             int use, double soft_cap, bool detached, const Tensor& hits) const {
  Weight table(*weight_, use);
  table.detached = detached;
  return parallel::vocabulary_cross_entropy(tape, x, table, first_, labels, weights, tensor_,
                                            soft_cap, output_, bias_, hits);
}

Var VocabularyTable::logits(Tape& tape, const Var& x, int use, double soft_cap) const {
  return parallel::vocabulary_linear(tape, x, Weight(*weight_, use), vocabulary_, tensor_, soft_cap,
                                     output_, bias_);
}

Tensor VocabularyTable::loss_logits(Tape& tape, const Tensor& x, int use, double soft_cap) const {
  return parallel::vocabulary_logits(tape, x, Weight(*weight_, use), vocabulary_, tensor_, soft_cap,
                                     output_, bias_);
}

Var VocabularyTable::log_probabilities(Tape& tape, const Var& x,
                                       const parallel::LabelledTokens& tokens, int use,
                                       double soft_cap) const {
  return parallel::token_log_probabilities(tape, x, Weight(*weight_, use), first_, tokens, tensor_,
                                           soft_cap, output_, bias_);
}

Tensor VocabularyTable::entropies(Tape& tape, const Tensor& x,
                                  const parallel::LabelledTokens& tokens, int use,
                                  double soft_cap) const {
  return parallel::token_entropies(tape, x, Weight(*weight_, use), first_, tokens, tensor_,
                                   soft_cap, output_, bias_);
}

PositionTable::PositionTable(Builder& builder, const std::string& name, int64_t positions,
                             int64_t hidden, parallel::Init init, int look_ups)
    : tensor_(builder.tensor()), weight_(builder.add(name + ".weight", {positions, hidden}, init)) {
  weight_.parameter->uses[0].ops = look_ups;
}

Var PositionTable::look_up(Tape& tape, const Tensor& positions) const {
  const parallel::Slice rows = tensor_.tokens(positions.size(0));
  return ops::embedding(tape, positions.slice(0, rows.global_begin, rows.size), weight_);
}

}  // namespace megatron::nn
