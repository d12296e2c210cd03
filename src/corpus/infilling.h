// Fill in the middle in the samples of a run.
#pragma once

#include <memory>

#include "corpus/vocabulary.h"
#include "data/infilling.h"
#include "settings/data_settings.h"

namespace megatron::corpus {

// What --fim-data does with documents; null without it. Throws Error naming the flag if the
// tokenizer reads no text or lacks one of the tokens, and for flags that contradict each other.
std::shared_ptr<const data::Infilling> open_infilling(const settings::DataSettings& settings,
                                                      const Vocabulary& vocabulary);

}  // namespace megatron::corpus
