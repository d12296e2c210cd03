#include "data/merge.h"

#include <fmt/core.h>

#include <optional>

#include "base/error.h"
#include "cli/command.h"

namespace megatron::cli {

int merge(const Arguments& arguments) {
  data::MergeRequest request;
  std::optional<std::string> output_prefix;
  Fields f;
  f.add("input", &request.input,
        "directories (all .bin/.idx pairs in them, sorted by name) or prefixes of pairs, merged "
        "in this order");
  f.add("output-prefix", &output_prefix, "prefix of the merged files, <prefix>.bin and .idx");
  f.add_switch("multimodal", &request.multimodal, true,
               "the pairs store a mode for each "
               "sequence (multimodal data)");
  f.add_switch("overwrite", &request.overwrite, true,
               "overwrite existing token files; other files and the inputs are left alone");
  if (const auto code =
          parse("megatron merge --input DIR|PREFIX... --output-prefix P [flags]",
                "Joins pairs of token files (.bin/.idx) into one.", f, {}, arguments)) {
    return *code;
  }
  MG_CHECK(!request.input.empty(), "--input DIR or PREFIX is needed");
  MG_CHECK(output_prefix.has_value(), "--output-prefix is needed");
  request.output_prefix = *output_prefix;
  const data::MergeResult r = data::merge_datasets(request);
  fmt::print("{}.bin/.idx: {} documents, {} sequences, {} tokens of type {} from {} pairs\n",
             request.output_prefix, r.documents, r.sequences, r.tokens, name(r.dtype), r.pairs);
  return 0;
}

}  // namespace megatron::cli
