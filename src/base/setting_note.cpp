#include "base/setting_note.h"

#include <fmt/core.h>

#include <algorithm>

namespace megatron {

std::vector<std::string> note_lines(const std::vector<SettingNote>& notes) {
  constexpr size_t kWidest = 48;  // a longer setting does not move the others' causes
  size_t width = 0;
  std::vector<std::string> settings;
  for (const SettingNote& note : notes) {
    settings.push_back(fmt::format("--{} {}", note.flag, note.value));
    if (settings.back().size() <= kWidest) width = std::max(width, settings.back().size());
  }
  std::vector<std::string> lines;
  for (size_t i = 0; i < notes.size(); ++i)
    lines.push_back(fmt::format("  {:<{}}   {}", settings[i], width, notes[i].cause));
  return lines;
}

}  // namespace megatron
