// What `megatron verify` compares of encoders without a head: hidden states, and what the pooler in
// a directory, which these models leave out, makes of each text's first.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/model_directory.h"
#include "models/model.h"
#include "selftest/canonical.h"
#include "selftest/expected.h"
#include "selftest/verify_batch.h"
#include "training/objective.h"

namespace megatron::selftest {

// tanh(w x + b), in fp64.
class Pooler {
 public:
  // Nothing if the directory has no pooler.dense.
  static std::optional<Pooler> read(const checkpoint::ModelDirectory& files,
                                    const models::Model& model);

  std::vector<double> pooled(std::span<const double> x) const;
  // Given the gradient of pooled(x): adds that of x to dx, and those of w and b to dw and db.
  void backward(std::span<const double> x, std::span<const double> gradient, std::span<double> dx,
                std::span<double> dw, std::span<double> db) const;
  // Names of w and b in the directory.
  const std::string& weight_name() const { return weight_name_; }
  const std::string& bias_name() const { return bias_name_; }

 private:
  std::string weight_name_, bias_name_;
  std::vector<double> weight_, bias_;
};

// The sum over all tokens, hidden ones too, of the squared differences from
// target.last_hidden_state [B,S,H], and over texts of those from target.pooler_output [B,H], either
// of which may be absent: how the vision encoders of the golden vectors make a loss.
class HiddenStates {
 public:
  // Throws Error for vectors that need a pooler, which the directory has not, and for a loss or
  // gradients without targets.
  HiddenStates(Expected& expected, const checkpoint::ModelDirectory& files,
               const models::Model& model, const ExpectedBatch& batch);

  // Null: there are no targets.
  const std::shared_ptr<const training::Objective>& objective() const { return objective_; }
  // Renames the output "hidden.head" to "last_hidden_state", and adds "pooler_output". Returns the
  // gradients of the pooler's tensors.
  TensorMap add_outputs(TensorMap& values) const;

 private:
  std::optional<Pooler> pooler_;
  std::shared_ptr<const training::Objective> objective_;
  std::vector<double> pooled_targets_;
  int64_t sequences_, length_, hidden_;
};

}  // namespace megatron::selftest
