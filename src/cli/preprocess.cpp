#include "corpus/preprocess.h"

#include <fmt/core.h>

#include "base/log.h"
#include "base/progress.h"
#include "cli/command.h"

namespace megatron::cli {

int preprocess(const Arguments& arguments) {
  corpus::PreprocessSettings settings;
  Fields fields;
  settings.fields(fields);
  std::vector<std::string> notes;
  if (const auto code = parse_training(
          "megatron preprocess --input PATH --output-prefix P --tokenizer-model DIR [flags]",
          "Tokenizes text into Megatron-LM's .bin/.idx files, in document order. Files appear "
          "only when complete: after an interruption, start again.",
          fields, arguments, notes)) {
    return *code;
  }
  for (const std::string& note : notes) log::info("{}", note);
  const auto results = naming_places(fields, [&] { return corpus::preprocess(settings); });
  for (const auto& r : results) {
    fmt::print("{}.bin/.idx: {} documents, {} tokens from {} ({:.2f} bytes per token)\n", r.prefix,
               r.documents, r.tokens, format_bytes(static_cast<double>(r.bytes)),
               static_cast<double>(r.bytes) / static_cast<double>(r.tokens));
  }
  return 0;
}

}  // namespace megatron::cli
