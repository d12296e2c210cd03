#pragma once

#include <string>

#include "models/model.h"
#include "settings/settings.h"

namespace megatron::training {

// Which products have quantised operands: "e4m3, gradients in e5m2, blockwise scales; products of
// linear layers in layers 2 to 11 of 12; in bf16: embedding, ..."; with a file of --te-precision-
// config-file, modules by name: "e4m3, mxfp8 scales: layers.{0-11}.mlp.up; in bf16: ...". "": none.
std::string precision_text(const settings::TrainSettings& run, const models::Model& model);

}  // namespace megatron::training
