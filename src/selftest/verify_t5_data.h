// Compares data sets of sentences for T5 with those of Megatron-LM.
#pragma once

#include <string>

#include "selftest/report.h"

namespace megatron::selftest {

// directory: as for verify_bert_dataset(), with the fields of T5's samples; masks may be numbers of
// ones, and those of attention as SHA-256. Its requests have a sequence_length_decoder.
bool has_t5_dataset(const std::string& directory);
// Throws Error if a file is missing or malformed.
Report verify_t5_dataset(const std::string& directory);

}  // namespace megatron::selftest
