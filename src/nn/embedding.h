// Embedding tables and the output layer.
#pragma once

#include <optional>
#include <string>

#include "nn/builder.h"
#include "parallel/token_log_probabilities.h"
#include "parallel/vocabulary.h"

namespace megatron::nn {

// The table of tokens [V,H], with its rows divided among ranks. A model may share one between input
// and output (tied).
class VocabularyTable {
 public:
  // One parameter <name>.weight. uses: for each, the number of ops of a micro-batch.
  VocabularyTable(Builder& builder, const std::string& name, int64_t vocabulary, int64_t hidden,
                  parallel::Init init, std::span<const int> uses);
  // Adds the adapter of the table's lookups, or of the output layer that uses it, and the trained
  // rows that replace some of its rows.
  void adapt_lookups(Builder& builder);
  void adapt_output(Builder& builder);
  // Adds only the trained rows, for an output layer that is tied to another stage's embedding.
  void adapt_tied_output(Builder& builder);
  // Quantizes the products of the output layer that it is, as the builder says.
  void quantize_output(Builder& builder) const { builder.quantize(*weight_, {false, true, true}); }
  // Adds the bias of the output layer, a parameter <name> [V] divided like the rows.
  void add_bias(Builder& builder, const std::string& name);
  // [T,H]; [T/n,H] if tokens are divided
  Var look_up(Tape& tape, const Tensor& ids, int use) const;
  // See parallel/vocabulary.h, also for hits. soft_cap: cap of the logits; 0: none. detached: the
  // table gets no gradient of this loss.
  Tensor loss(Tape& tape, const Var& x, const Tensor& labels, const Tensor& weights, int use,
              double soft_cap = 0, bool detached = false, const Tensor& hits = {}) const;
  Var logits(Tape& tape, const Var& x, int use, double soft_cap = 0) const;
  Tensor loss_logits(Tape& tape, const Tensor& x, int use, double soft_cap = 0) const;
  // See parallel/token_log_probabilities.h.
  Var log_probabilities(Tape& tape, const Var& x, const parallel::LabelledTokens& tokens, int use,
                        double soft_cap = 0) const;
  Tensor entropies(Tape& tape, const Tensor& x, const parallel::LabelledTokens& tokens, int use,
                   double soft_cap = 0) const;

 private:
  void replace_output_rows(ops::ReplacedRows rows);

  parallel::TensorParallel tensor_;
  Parameter* weight_;
  int64_t vocabulary_, first_;
  std::optional<Builder::TableAdapter> lookups_;
  ops::ReplacedRows replaced_;  // where it is looked up
  ops::LowRank output_;
  Weight bias_;
};

// The table of learned positions [P,H], <name>.weight, replicated on every rank.
class PositionTable {
 public:
  // look_ups: of a micro-batch.
  PositionTable(Builder& builder, const std::string& name, int64_t positions, int64_t hidden,
                parallel::Init init, int look_ups = 1);
  Var look_up(Tape& tape, const Tensor& positions) const;  // [T,H]; [T/n,H] if tokens are divided

 private:
  parallel::TensorParallel tensor_;
  Weight weight_;
};

}  // namespace megatron::nn
