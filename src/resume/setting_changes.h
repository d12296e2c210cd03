// Settings with which a resumed run computes differently from the run that saved its checkpoint.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "models/model.h"
#include "resume/trainer_state.h"
#include "settings/settings.h"

namespace megatron::resume {

// Settings that affect a run's numbers, besides optimizer, schedules, data and shape: {"clip-grad":
// "1", "hidden-dropout": "0.1", ...}, as text under the flags' names.
Json result_settings(const settings::TrainSettings& settings, const models::Model& model);

struct SettingChange {
  std::string setting, from, to;  // "clip-grad", "1", "0.5"
  // Formats "changed: clip-grad from 1 to 0.5".
  std::string text() const;
};

// Changes of settings that affect results, of optimizer and schedules (current learning rate and
// weight decay). Settings that an older program's checkpoint lacks are not compared.
std::vector<SettingChange> setting_changes(const TrainerState& saved,
                                           const settings::TrainSettings& settings,
                                           const models::Model& model,
                                           const optim::LearningRate& rate,
                                           const optim::WeightDecay& decay);

}  // namespace megatron::resume
