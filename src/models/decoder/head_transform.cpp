#include "models/decoder/head_transform.h"

#include "models/decoder/layer.h"
#include "ops/activation.h"
#include "ops/soft_cap.h"

namespace megatron::models {

HeadTransformLayer::HeadTransformLayer(nn::Builder& builder, const std::string& name,
                                       const HeadTransform& config, const DecoderValue& model)
    : config_(config),
      dense_(builder, name + ".dense", model.hidden_size, model.hidden_size, config.bias,
             matrix_init(model)) {
  if (config.kind == HeadTransform::Kind::dense_norm)
    norm_ = std::make_unique<nn::AddNorm>(builder, name + ".norm", model.hidden_size, config.norm);
}

Var HeadTransformLayer::operator()(Tape& tape, const Var& x_TH) const {
  const Var y_TH = dense_(tape, x_TH);
  if (config_.kind == HeadTransform::Kind::pooler) return ops::soft_cap(tape, y_TH, 1);  // tanh
  const Var f_TH = ops::activation(tape, y_TH, config_.activation, false);
  return norm_ == nullptr ? f_TH : (*norm_)(tape, f_TH, Var()).normed;
}

}  // namespace megatron::models
