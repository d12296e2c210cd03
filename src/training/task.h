// What a run trains on and what it minimizes, other than token files and their next tokens.
#pragma once

#include <memory>
#include <vector>

#include "corpus/chat/chat_corpus.h"
#include "models/model.h"
#include "training/objective.h"

namespace megatron::training {

class Task {
 public:
  virtual ~Task() = default;
  // The model to train, made from that of the run's directory or flags: the same one, or one with
  // another head. Throws Error if the task cannot train it.
  virtual models::Model model(const models::Model& model,
                              const corpus::Vocabulary& vocabulary) const = 0;
  // The run's data sets. stops: tokens at which the model's generation ends.
  virtual corpus::Corpus open(const corpus::ExampleFiles& files, const models::Model& model,
                              const std::vector<int32_t>& stops) const = 0;
  // Null: the mean loss of the labels. model: the result of model().
  virtual std::shared_ptr<const Objective> objective(const models::Model&) const { return nullptr; }
  // True if the objective reads a reference model's log-probabilities of the labels.
  virtual bool needs_reference() const { return false; }
};

}  // namespace megatron::training
