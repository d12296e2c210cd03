// Settings for offloading to host memory.
#pragma once

#include <optional>
#include <vector>

#include "base/fields.h"
#include "base/setting_note.h"
#include "models/stage.h"

namespace megatron::settings {

struct OffloadSettings {
  int64_t num_layers = 0;
  bool optimizer = false;
  std::optional<double> optimizer_fraction;

  void fields(Fields& fields);
  // Throws Error naming the values and flags that cannot be combined, and what to change; adds a
  // note for each that has no effect. chunk_layers: smallest number of layers in a pipeline stage's
  // chunk.
  void check(int64_t chunk_layers, std::vector<SettingNote>& notes) const;
  // Call after check().
  models::OffloadOptions options() const { return {.layers = num_layers}; }
  // Fraction of the elements whose optimizer state is in host memory.
  double fraction() const { return optimizer ? optimizer_fraction.value_or(1) : 0; }
};

}  // namespace megatron::settings
