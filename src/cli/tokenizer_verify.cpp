#include <fmt/core.h>

#include "base/error.h"
#include "cli/command.h"
#include "tokenizers/vector_check.h"

namespace megatron::cli {

int tokenizer_verify(const Arguments& arguments) {
  std::vector<std::string> directories, files;
  Fields f;
  f.add("vectors", &files, "JSON-lines files with test vectors; default every *.jsonl in DIR");
  if (const auto code =
          parse("megatron tokenizer verify DIR [--vectors FILE...]",
                "Compares a tokenizer with recorded results of the original: ids, offsets, decoded "
                "text, streamed pieces and rendered chats, one JSON object per line.",
                f, {{"dir", "directory with the tokenizer", &directories, true}}, arguments)) {
    return *code;
  }
  MG_CHECK(directories.size() == 1, "{} directories are given; give one", directories.size());
  const tokenizers::VectorReport report = tokenizers::check_vectors(
      directories[0], files, [](std::string_view mismatch) { fmt::print("{}\n", mismatch); });
  fmt::print("{} passed, {} failed\n", report.passed, report.failed);
  return report.failed == 0 ? 0 : 1;
}

}  // namespace megatron::cli
