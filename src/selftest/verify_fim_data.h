// Compares samples with fill in the middle with those of Megatron-LM.
#pragma once

#include <string>

#include "selftest/report.h"

namespace megatron::selftest {

// directory:
//   data/index.json    facts of data/NAME.{bin,idx} and of the tokenizers data/PATH, or
//                      ../indexed/preprocess/PATH
//   cases/*/case.json  a request with the rates, and for each split the SHA-256 of its indices and
//                      samples in the order in which they were read; index null: the filler of a
//                      batch
// All are compared as with megatron_data_order, in that order. Recorded draws, and descriptions and
// names of Megatron-LM's caches, are not compared.
bool has_fim_dataset(const std::string& directory);
// Throws Error if a file is missing or malformed.
Report verify_fim_dataset(const std::string& directory);

}  // namespace megatron::selftest
