// A setting that was derived by default or that is run differently than given, and the reason.
#pragma once

#include <string>
#include <vector>

namespace megatron {

struct SettingNote {
  std::string flag;   // without dashes: "global-batch-size"
  std::string value;  // value in effect
  std::string cause;  // "micro-batch-size 4 x 2 ranks"
};

// One line each, in columns: "  --global-batch-size 8   micro-batch-size 4 x 2 ranks".
std::vector<std::string> note_lines(const std::vector<SettingNote>& notes);

}  // namespace megatron
