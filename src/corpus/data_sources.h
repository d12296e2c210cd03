// The token files that the flags of a run name.
#pragma once

#include <string>

#include "data/blend_builder.h"
#include "settings/data_settings.h"

namespace megatron::corpus {

struct DataSources {
  data::BlendRequest blend;
  bool mock = false;
};

// Shares of the splits, of data that all share.
std::string split_of(const settings::DataSettings& settings);
// Named by the flags themselves, without lists in files. Throws Error for more than one source.
DataSources sources_of_flags(const settings::DataSettings& settings);
// With the lists in files. Throws Error naming the flags if there is no data.
DataSources find_sources(const settings::DataSettings& settings);

}  // namespace megatron::corpus
