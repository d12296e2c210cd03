// Every setting of a run whose value was derived rather than given, with the reason.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/setting_note.h"
#include "corpus/vocabulary.h"
#include "models/model.h"
#include "resume/trainer_state.h"
#include "settings/settings.h"

namespace megatron::training {

// The given and the final settings of a run.
struct Derivation {
  const settings::TrainSettings& given;     // as typed
  const settings::TrainSettings& settings;  // as the run uses them: after finalize()
  const models::Model& model;
  const corpus::Vocabulary& vocabulary;
  std::string
      shape_source;    // source whose config.json gave the shape (model_source.h); "": flags did
  bool grown = false;  // the tokenizer has more tokens than that config.json
  std::vector<SettingNote> stages = {};  // notes of the stages of settle.h, in any order
  // State of the checkpoint that the run resumes from; null: it starts at step 0.
  const resume::TrainerState* resumed = nullptr;
  std::string resumed_from;  // its path
};

// Returns a note for each setting that was derived from others, or whose effective value differs
// from the given one. Defaults that --help shows are not listed.
std::vector<SettingNote> derived_settings(const Derivation& derivation);

}  // namespace megatron::training
