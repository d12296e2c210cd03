// What a resumed run computes otherwise than the run that saved its checkpoint.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "models/model.h"
#include "resume/trainer_state.h"
#include "settings/settings.h"

namespace megatron::resume {

// The settings, besides optimizer, schedules, data and shape, that the numbers of a run follow from:
// {"clip-grad": "1", "hidden-dropout": "0.1", ...}, as text under the flags' names.
Json result_settings(const settings::TrainSettings& settings, const models::Model& model);

struct SettingChange {
  std::string setting, from, to;  // "clip-grad", "1", "0.5"
  // "changed: clip-grad from 1 to 0.5"
  std::string text() const;
};

// Of result settings, optimizer and schedules (rate and decay: those that hold now). A setting that
// the checkpoint does not tell, of an older program, is not compared.
std::vector<SettingChange> setting_changes(const TrainerState& saved,
                                           const settings::TrainSettings& settings,
                                           const models::Model& model,
                                           const optim::LearningRate& rate,
                                           const optim::WeightDecay& decay);

}  // namespace megatron::resume
