// Text to token files, in the order of the documents.
#pragma once

#include <string>
#include <vector>

#include "training/settings.h"

namespace megatron::training {

struct PreprocessSettings {
  std::vector<std::string> input;     // files or directories
  std::string input_format = "auto";  // auto | manpages
  std::vector<std::string> json_keys = {"text"};
  std::optional<std::string> output_prefix, tokenizer_type, tokenizer_model;
  std::optional<int64_t> vocab_size, workers;
  bool append_eod = false, overwrite = false, whole_files = false;

  void fields(Fields& fields);
};

struct PreprocessResult {
  std::string prefix;  // of the .bin/.idx pair
  int64_t documents = 0, tokens = 0, bytes = 0;
};

// One pair of files a key: <output-prefix>_<key>_document.{bin,idx}, each appearing whole. Throws
// Error before reading when an output exists and --overwrite is not given.
std::vector<PreprocessResult> preprocess(const PreprocessSettings& settings);

}  // namespace megatron::training
