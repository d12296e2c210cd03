// --output of `megatron generate`: a line for each prompt, which a run that was killed goes on from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/resumable_lines.h"
#include "cli/generate_output.h"

namespace megatron::cli {

// Flags that a text depends on, besides model and prompt, and their values.
Json::Object flags_of_texts(const Fields& fields);

class ContinuationLines {
 public:
  struct Source {
    std::string output, model, tokenizer;  // paths
    Json::Object flags;                    // flags_of_texts()
    bool with_logprobs = false;
  };

  // Shows progress. Throws Error where an earlier run had other prompts, flags or another model.
  ContinuationLines(const Source& source, const std::vector<std::string>& prompts);

  std::vector<size_t> missing() const;  // numbers of prompts
  void count_token();                   // for the progress
  void add(size_t number, const Continuation& continuation);
  void commit();  // all must be there

 private:
  int64_t count_;
  bool with_logprobs_;
  ResumableLines lines_;
  Progress progress_;
  double begin_;
  int64_t tokens_ = 0;
};

}  // namespace megatron::cli
