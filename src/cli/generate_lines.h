// --output of `megatron generate`: one line per prompt, from which a run that was killed can be
// continued.
#pragma once

#include <string>
#include <vector>

#include "base/fields.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/resumable_lines.h"
#include "cli/generate_output.h"

namespace megatron::cli {

// Returns the flags, with their values, that a text depends on besides model and prompt.
Json::Object flags_of_texts(const Fields& fields);

class ContinuationLines {
 public:
  struct Source {
    std::string output;
    Json model;             // its fingerprint
    std::string tokenizer;  // path
    Json::Object flags;     // flags_of_texts()
    LineParts parts = {};
  };

  // Shows progress. Throws Error if an earlier run had other prompts, other flags or another model.
  ContinuationLines(const Source& source, const std::vector<std::string>& prompts);

  std::vector<size_t> missing() const;  // indices of prompts
  void count_token();                   // for the progress line
  void add(size_t number, const Continuation& continuation);
  void commit();  // requires all lines

 private:
  int64_t count_;
  LineParts parts_;
  ResumableLines lines_;
  Progress progress_;
  double begin_;
  int64_t tokens_ = 0;
};

}  // namespace megatron::cli
