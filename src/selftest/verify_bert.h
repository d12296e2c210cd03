// Compares data sets of sentences for BERT with those of Megatron-LM.
#pragma once

#include <string>

#include "selftest/report.h"

namespace megatron::selftest {

// directory:
//   data/index.json      facts of data/NAME.{bin,idx} and of the tokenizers data/PATH
//   data/NAME.jsonl      the same documents as lists of sentences
//   build_mapping.json   mappings of bare arrays of sentence lengths into samples; optional
//   random_state.json    draws of the generators; optional
//   cases/*/case.json    a request, and for each split the mapping (numbers of samples and
//                        documents, SHA-256, SPLIT/sample_index.npy) and samples with all fields;
//                        a blend of several data sets; or error, for a request that is refused
// All are compared as with megatron_data_order. The recorded draws of samples, and descriptions and
// names of Megatron-LM's caches, are not compared: caches have keys of their own here.
bool has_bert_dataset(const std::string& directory);
// Throws Error if a file is missing or malformed.
Report verify_bert_dataset(const std::string& directory);

}  // namespace megatron::selftest
