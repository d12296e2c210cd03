// Settings for capturing micro-batches as CUDA graphs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/setting_note.h"
#include "device/device.h"
#include "settings/parallel_settings.h"

namespace megatron::settings {

struct GraphSettings {
  std::string impl = "none";
  int64_t warmup_steps = 3;

  void fields(Fields& fields);
  // Throws Error naming what cannot be captured; on devices other than CUDA a note says that
  // nothing is captured.
  void check(DeviceKind device, std::vector<SettingNote>& notes) const;
  // StepOptions::record_after; also absent for ranks that the rules (rules.h) refuse.
  std::optional<int64_t> record_after(const ParallelSettings& parallel) const;
};

}  // namespace megatron::settings
