// The model that a run trains: from flags, from a config.json, or from the weights of another one.
#pragma once

#include "corpus/vocabulary.h"
#include "models/upcycling.h"
#include "training/model_source.h"
#include "training/task.h"

namespace megatron::training {

// The model with experts that --moe-use-upcycling makes of a dense one. Throws Error if flags that
// describe the dense model contradict its directory.
models::UpcycledModel upcycled_model(const settings::TrainSettings& s, const ShapeSource& source);

// task: null: training on next tokens. Throws Error if the flags do not fit the source, the
// vocabulary or the task.
models::Model model_of_run(const settings::TrainSettings& s, const ShapeSource& source,
                           const corpus::Vocabulary& vocabulary, const Task* task);

}  // namespace megatron::training
