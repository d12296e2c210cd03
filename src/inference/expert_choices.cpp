#include "inference/expert_choices.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::inference {

int64_t choices_per_token(const models::ExpertFacts& experts) {
  return std::ranges::count(experts.layers, true) * experts.chosen;
}

Json expert_choices_json(std::span<const int32_t> choices, const models::ExpertFacts& experts) {
  const auto of_token = static_cast<size_t>(choices_per_token(experts));
  const auto of_layer = static_cast<size_t>(experts.chosen);
  MG_ASSERT(choices.size() % of_token == 0);
  Json::Array tokens;
  for (; !choices.empty(); choices = choices.subspan(of_token)) {
    Json::Array layers;
    for (size_t begin = 0; begin < of_token; begin += of_layer) {
      Json::Array chosen;
      for (const int32_t expert : choices.subspan(begin, of_layer))
        if (expert >= 0) chosen.emplace_back(int64_t{expert});
      layers.emplace_back(std::move(chosen));
    }
    tokens.emplace_back(std::move(layers));
  }
  return Json(std::move(tokens));
}

}  // namespace megatron::inference
