#include "settings/infilling_settings.h"

#include <span>

namespace megatron::settings {

void InfillingSettings::fields(Fields& f) {
  f.add_switch("fim-data", &fim_data, true,
               "rearrange documents so that the model learns to fill in the middle of a text "
               "(docs/data.md)");
  const size_t first = f.all().size();
  f.add("fim-rate", &rate, "share of the documents that are rearranged");
  f.add("fim-spm-rate", &spm_rate,
        "share of the rearranged texts whose suffix comes before the prefix (SPM); in the others "
        "the prefix comes first (PSM)");
  f.add("fim-split-sample", &split_sample,
        "token between the fragments of a document, such as the files of a repository, which are "
        "rearranged one by one");
  f.add("fim-fragment-rate", &fragment_rate,
        "share of the fragments that are rearranged, in the documents of --fim-rate");
  f.add("fim-no-prefix", &no_prefix, "texts that begin with this are not rearranged");
  f.add("fim-prefix-token", &prefix_token, "token before the prefix");
  f.add("fim-middle-token", &middle_token, "token before the middle");
  f.add("fim-suffix-token", &suffix_token, "token before the suffix");
  f.add("fim-pad-token", &pad_token,
        "token that fills the end of a sample that became shorter; it has no loss");
  f.add(
      "fim-eod-token", &eod_token,
      "token at the end of a document; only the tokenizer's own is accepted, which is the default");
  for (Field& field : std::span(f.all()).subspan(first))
    field.idle = [this] { return fim_data ? "" : "--fim-data is not given"; };
}

}  // namespace megatron::settings
