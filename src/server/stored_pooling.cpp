#include "server/stored_pooling.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace megatron::server {

inference::Pooling stored_pooling(const std::string& directory) {
  using enum inference::Pooling;
  constexpr std::array kKnown = {std::pair{"pooling_mode_cls_token", first_token},
                                 std::pair{"pooling_mode_mean_tokens", mean},
                                 std::pair{"pooling_mode_lasttoken", last_token}};
  const std::string path = directory + "/1_Pooling/config.json";
  if (!std::filesystem::exists(path)) return mean;
  const Json config = Json::read(path);
  MG_CHECK(config.is_object(), "{} is {}; it must be a JSON object", path, config.dump());
  std::optional<inference::Pooling> found;
  for (const auto& [key, value] : config.as_object()) {
    if (!key.starts_with("pooling_mode_") || value == Json(false)) continue;
    const auto known =
        std::ranges::find_if(kKnown, [&key](const auto& mode) { return key == mode.first; });
    MG_CHECK(value == Json(true) && known != kKnown.end() && !found,
             "{} has {} = {}; supported is one of pooling_mode_mean_tokens, "
             "pooling_mode_cls_token and pooling_mode_lasttoken",
             path, key, value.dump());
    found = known->second;
  }
  return found.value_or(mean);
}

}  // namespace megatron::server
