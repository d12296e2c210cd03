// Encoders for tests: models of flags whose attention sees later tokens, too.
#pragma once

#include "models/model_flags.h"

namespace megatron::testing {

// All layers must be alike.
inline models::Model two_sided(models::ModelFlags flags) {
  flags.model_family = "megatron";
  Json config = models::model_from_flags(flags, 0)->config_json(DType::f32);
  Json model = config["model"];
  model.set("two-sided", true);
  config.set("model", std::move(model));
  return models::model_from_config_json(config);
}

}  // namespace megatron::testing
