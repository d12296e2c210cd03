#include "models/decoder/feed_forwards/dense.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/decoder/value_checks.h"

namespace megatron::models {
namespace {

using Dense = LayerPart<nn::MlpConfig>;

class MlpSublayer final : public Sublayer {
 public:
  template <class... Args>
  explicit MlpSublayer(Args&&... args) : mlp_(std::forward<Args>(args)...) {}
  Var operator()(Tape& tape, const Var& x_TH, const nn::Batch&, bool) const override {
    return mlp_(tape, x_TH);
  }

 private:
  nn::Mlp mlp_;
};

double plain_activation(kernels::Activation function, double x) {
  using kernels::Activation;
  switch (function) {
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::relu: return std::max(x, 0.0);
    case Activation::squared_relu: return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::quick_gelu: return x / (1 + std::exp(-1.702 * x));
  }
  return NAN;
}

}  // namespace

void Dense::check(const DecoderValue&, const nn::MlpConfig& mlp, std::string_view width_flag) {
  check_size(mlp.ffn, kMaxWidth, width_flag);
  check_number(mlp.clamp, mlp.clamp >= 0, "activation-func-clamp-value", "positive");
  MG_CHECK(std::isfinite(mlp.up_offset), "--glu-linear-offset is {}; it must be finite",
           mlp.up_offset);
  for (const double factor : {mlp.gate_multiplier, mlp.output_multiplier})
    MG_CHECK(std::isfinite(factor) && factor != 0,
             "a multiplier of an MLP is {}; it must be a number other than 0", factor);
  MG_CHECK(mlp.gated || mlp.gate_multiplier == 1,
           "an MLP without a gate has a multiplier of its gate, {}; it must be 1",
           mlp.gate_multiplier);
  MG_CHECK(
      mlp.gated || (mlp.clamp == 0 && mlp.up_offset == 0),
      "--activation-func-clamp-value and --glu-linear-offset apply to gated feed-forward blocks "
      "only: use --swiglu or --quick-geglu");
}

int64_t Dense::parameters(const nn::MlpConfig& mlp, const nn::NormConfig&, int64_t hidden) {
  const int64_t up = mlp.gated ? 2 * mlp.ffn : mlp.ffn;
  return hidden * up + mlp.ffn * hidden + (mlp.bias ? up + hidden : 0);
}

double Dense::forward_flops(const nn::MlpConfig& mlp, int64_t hidden, int64_t length) {
  return 2 * static_cast<double>(length) * static_cast<double>(hidden) *
         static_cast<double>(mlp.ffn) * (mlp.gated ? 3 : 2);
}

FeedForwardFacts Dense::facts(const nn::MlpConfig& mlp) {
  return {.width = mlp.ffn, .activation = mlp.activation, .gated = mlp.gated, .bias = mlp.bias};
}

void Dense::add_facts(const nn::MlpConfig& mlp, ModelFacts& facts) {
  if (!facts.feed_forward) facts.feed_forward = Dense::facts(mlp);
}

std::unique_ptr<Sublayer> Dense::build(nn::Builder& builder, const std::string& name,
                                       const nn::MlpConfig& mlp, const LayerPlace& place) {
  return std::make_unique<MlpSublayer>(builder, name, place.model.hidden_size, mlp,
                                       matrix_init(place.model), output_init(place.model),
                                       place.model.mlp_chunks);
}

PlainRow Dense::plain_activated(const PlainRow& row, const nn::MlpConfig& mlp) {
  const auto width = static_cast<size_t>(mlp.ffn);
  PlainRow y(width);
  for (size_t f = 0; f < width; ++f) {
    double gate = mlp.gate_multiplier * row[f], up = mlp.gated ? row[width + f] : 1;
    if (mlp.gated && mlp.clamp > 0) {
      gate = std::min(gate, mlp.clamp);
      up = std::clamp(up, -mlp.clamp, mlp.clamp);
    }
    y[f] = plain_activation(mlp.activation, gate) * (up + mlp.up_offset);
  }
  return y;
}

PlainRows Dense::plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                       const nn::MlpConfig& mlp, const nn::NormConfig&) {
  PlainRows inner;
  for (const PlainRow& row :
       parts.linear(x, name + ".up", mlp.gated ? 2 * mlp.ffn : mlp.ffn, mlp.bias))
    inner.push_back(plain_activated(row, mlp));
  PlainRows y = parts.linear(inner, name + ".down", parts.model().hidden_size, mlp.bias);
  for (PlainRow& row : y)
    for (double& value : row) value *= mlp.output_multiplier;
  return y;
}

}  // namespace megatron::models
