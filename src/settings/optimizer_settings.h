// The optimizer and its schedules.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "settings/batch_settings.h"

namespace megatron::settings {

struct OptimizerSettings {
  optim::OptimizerConfig config;
  std::optional<double> lr;
  double min_lr = 0, lr_warmup_init = 0;
  std::optional<double> decoupled_lr, decoupled_min_lr;
  optim::DecayStyle lr_decay_style = optim::DecayStyle::linear;
  optim::WsdStyle lr_wsd_decay_style = optim::WsdStyle::exponential;
  std::optional<int64_t> lr_decay_iters, lr_decay_samples;
  std::optional<int64_t> lr_wsd_decay_iters, lr_wsd_decay_samples;
  int64_t lr_warmup_iters = 0, lr_warmup_samples = 0;
  std::optional<double> lr_warmup_fraction;
  double weight_decay = 0.01;
  std::optional<double> start_weight_decay, end_weight_decay;
  std::vector<std::string> freeze;
  optim::DecayIncrease weight_decay_increase = optim::DecayIncrease::constant;

  void fields(Fields& fields);
  // Settings on which the optimizer's state and its next steps depend, under the flags' names.
  Fields rule_fields();
  // The two schedules in samples: a number of iterations means the samples that the finalized
  // batch settings consume in them. As in Megatron-LM, a run counts all in iterations or all in
  // samples. Throws Error naming the flag.
  optim::LearningRate learning_rate(const BatchSettings& batch) const;
  optim::WeightDecay decay(const BatchSettings& batch) const;

 private:
  void add_rule_fields(Fields& fields);
  void add_muon_fields(Fields& fields);
  void name_modes(Fields& fields) const;
  void check_warmup(const BatchSettings& batch) const;
  double wsd_samples(const BatchSettings& batch) const;
};

}  // namespace megatron::settings
