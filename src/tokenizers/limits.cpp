#include "tokenizers/limits.h"

#include "base/error.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kGrowth = 32, kRoom = size_t{64} << 10;
constexpr int kComponents = 64, kLevels = 16;

int count_components(const Json& settings, std::string_view part, int level) {
  MG_CHECK(level <= kLevels, "{}: Sequences are nested more than {} levels deep; flatten them",
           part, kLevels);
  const Json* type = settings.is_object() ? settings.find("type") : nullptr;
  if (!type || *type != Json("Sequence")) return 1;
  int count = 0;
  for (const auto& [key, value] : settings.as_object()) {
    if (!value.is_array()) continue;
    for (const Json& one : value.as_array()) count += count_components(one, part, level + 1);
    MG_CHECK(count <= kComponents, "{}: there are more than {} components in it", part,
             kComponents);
  }
  return count;
}

}  // namespace

void check_growth(size_t bytes, size_t before, std::string_view part) {
  const size_t limit = before * kGrowth + kRoom;
  MG_CHECK(bytes <= limit,
           "{} produces {} bytes or more from a text of {} bytes; the limit is {} ({} times its "
           "size plus {} KiB): shorten the text that it inserts",
           part, bytes, before, limit, kGrowth, kRoom >> 10);
}

void check_components(const Json& settings, std::string_view part) {
  count_components(settings, part, 0);
}

}  // namespace megatron::tokenizers
