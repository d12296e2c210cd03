// Other settings for a run that does not fit, each planned before it is suggested.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"
#include "plan/plan.h"
#include "settings/settings.h"
#include "training/plan/suggestions.h"

namespace megatron::training {

class SuggestionTrials {
 public:
  struct Change {
    std::string flags;
    double share = 1;    // of the state that ranks hold as it is: what remains of it at best
    bool other = false;  // the run has another result
  };

  // plan: of the run as it is. All outlive this.
  SuggestionTrials(const settings::TrainSettings& settings, const models::Model& model,
                   const plan::Plan& plan, const PlanOf& plan_of);

  const settings::TrainSettings& settings() const { return s_; }
  const models::Model& model() const { return model_; }
  const plan::Plan& plan() const { return plan_; }

  // The settings' own model with their number of positions and training of routers; where flags give the shape, with
  // what they say.
  models::Model model_of(const settings::TrainSettings& s) const;
  // Global batch size at the end of the run.
  int64_t last_batch() const;

  // With a constant global batch. nullopt: flags, or the model's sizes, forbid it, or the time for
  // trials is over.
  std::optional<plan::Plan> tried(settings::TrainSettings s, const models::Model& model,
                                  int64_t batch) const;
  // Whether settings that differ in what activations take are planned to fit.
  bool fits(const settings::TrainSettings& s) const;
  // Suggests the change where its plan fits; true: it does.
  bool put(const Change& change, const settings::TrainSettings& s, int64_t batch);
  bool put(const Change& change, const settings::TrainSettings& s) {
    return put(change, s, last_batch());
  }
  // needs: "12 GB of each of 4 machines".
  void suggest(const std::string& flags, const std::string& needs, bool other);

  bool none() const { return found_.empty(); }
  std::vector<std::string> found() const { return found_; }

  // Of the memory that decides: a GPU's, or this process's.
  static int64_t needed(const plan::Plan& p) { return p.gpu ? p.gpu_bytes() : p.process_bytes(); }

 private:
  const settings::TrainSettings& s_;
  const models::Model& model_;
  const plan::Plan& plan_;
  const PlanOf& plan_of_;
  double began_ = 0;
  int64_t share_of_a_rank_ = 0;  // bytes that there are
  // Bytes that a rank holds at least, whatever its batches.
  int64_t state_ = std::numeric_limits<int64_t>::max();
  std::vector<std::string> found_;
};

}  // namespace megatron::training
