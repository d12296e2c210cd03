// Converts text to token files, in the order of the documents.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "settings/tokenizer_settings.h"

namespace megatron::corpus {

struct PreprocessSettings : settings::TokenizerSettings {
  std::vector<std::string> input;     // files, directories or patterns
  std::string input_format = "auto";  // auto | jsonl
  std::vector<std::string> json_keys = {"text"};
  std::optional<std::string> output_prefix;
  std::optional<int64_t> vocab_size, workers, log_interval;
  int64_t partitions = 1;
  bool keep_sequential_samples = false;
  bool split_sentences = false, keep_newlines = false;
  std::string lang = "english", on_bad_line = "fail";
  bool append_eod = false, overwrite = false, whole_files = false;
  int64_t block_bytes = 1 << 19;  // of text per worker at a time; does not change results

  void fields(Fields& fields);
};

struct PreprocessResult {
  std::string prefix;                            // of the .bin/.idx pair
  int64_t documents = 0, tokens = 0, bytes = 0;  // bytes: of the decompressed input
  int64_t bad_lines = 0;                         // skipped lines (--on-bad-line skip)
};

// Writes one pair of files per key, all in one pass over the input:
// <output-prefix>_<key>_document.{bin,idx}, or _sentence with split_sentences; each .idx appears
// atomically and after its .bin. Temporary files of an interrupted run are removed first. The bytes
// do not depend on the number of workers. Throws Error before reading if an output exists and
// --overwrite is not given.
std::vector<PreprocessResult> preprocess(const PreprocessSettings& settings);

}  // namespace megatron::corpus
