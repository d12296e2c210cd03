// What is suggested where no settings of the same model fit on the same machine.
#pragma once

#include "training/plan/suggestion_trials.h"

namespace megatron::training {

// As many of the ranks of a run with these settings on each of several machines as fit. flags: those
// that make the settings of the run's own, with a space behind; or "".
void suggest_several_machines(SuggestionTrials& trials, const std::string& flags,
                              settings::TrainSettings settings);

// The run as it is on GPUs of the kind that plans are made for, or on as few of them as hold it:
// tensor-parallel ranks of one machine, then pipeline stages over machines.
void suggest_gpus(SuggestionTrials& trials);

// The most layers that fit; fewer tokens where the vocabulary takes most; smaller matrices where
// nothing else is enough. Only where flags give the shape.
void suggest_smaller_model(SuggestionTrials& trials);

}  // namespace megatron::training
