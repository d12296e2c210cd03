// The directory of a BERT without a head, as transformers' BertModel and sentence-transformers
// write it: that of the golden vectors without the head's tensors and the prefix of the others.
#pragma once

#include "base/files.h"
#include "unit/checkpoint/raw_tensors.h"
#include "unit/models/family_models.h"

namespace megatron::testing {

inline void write_headless_bert(const std::string& directory) {
  Json config = family_config("bert");
  config.set("architectures", Json::Array{"BertModel"});
  write_file(directory + "/config.json", config.dump());
  constexpr std::string_view kPrefix = "bert.";
  std::vector<RawTensor> tensors;
  for (RawTensor& tensor : read_raw(family_directory("bert") + "/model.safetensors")) {
    if (!tensor.name.starts_with(kPrefix)) continue;
    tensor.name.erase(0, kPrefix.size());
    tensors.push_back(std::move(tensor));
  }
  write_raw(directory + "/model.safetensors", tensors);
}

}  // namespace megatron::testing
