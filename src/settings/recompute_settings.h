// Settings for activation recompute.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/setting_note.h"
#include "models/stage.h"

namespace megatron::settings {

struct RecomputeSettings {
  bool activations = false;
  std::optional<std::string> granularity, method;
  std::optional<int64_t> num_layers;
  std::vector<std::string> modules;
  bool distribute = false;
  int64_t mlp_chunks = 1;

  void fields(Fields& fields);
  // Throws Error naming the values and flags that cannot be combined, and what to change; adds a
  // note for derived values. chunk_layers: largest number of layers in a pipeline stage's chunk.
  void check(int64_t chunk_layers, std::vector<SettingNote>& notes) const;
  bool any() const { return activations || granularity.has_value(); }
  // Valid after check(); does not set `tensor`, which belongs to `distribute` and is set by the
  // caller.
  models::RecomputeOptions options() const;
};

}  // namespace megatron::settings
