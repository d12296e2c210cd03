// Settings of fill in the middle, under Megatron-LM's flag names.
#pragma once

#include <optional>
#include <string>

#include "base/fields.h"

namespace megatron::settings {

struct InfillingSettings {
  bool fim_data = false;
  double rate = 0.5, spm_rate = 0.5;
  std::optional<double> fragment_rate;
  std::optional<std::string> split_sample, no_prefix, eod_token;
  std::string prefix_token = "<fim_prefix>", middle_token = "<fim_middle>",
              suffix_token = "<fim_suffix>", pad_token = "<fim_pad>";

  void fields(Fields& fields);
};

}  // namespace megatron::settings
