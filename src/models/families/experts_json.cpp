#include "models/families/experts_json.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::models {
namespace {

std::vector<int64_t> dense_layers(const DecoderValue& value) {
  std::vector<int64_t> dense;
  for (int64_t i = 0; i < value.num_layers(); ++i)
    if (value.layers[static_cast<size_t>(i)].moe() == nullptr) dense.push_back(i);
  return dense;
}

}  // namespace

void set_experts(DecoderValue& value, const nn::MoeConfig& experts,
                 const std::function<bool(int64_t layer)>& sparse) {
  for (int64_t i = 0; i < value.num_layers(); ++i)
    if (sparse(i)) value.layers[static_cast<size_t>(i)].feed_forward = experts;
  MG_CHECK(
      value.first_moe() != nullptr,
      "config.json has no experts in any of its {} layers; use the model_type of a dense model",
      value.num_layers());
}

bool is_sparse(const Json& j, int64_t layer) {
  const int64_t step = integer(j, "decoder_sparse_step");
  if (const Json* dense = present(j, "mlp_only_layers")) {
    MG_CHECK(dense->is_array() && std::ranges::all_of(dense->as_array(), &Json::is_integer),
             "config.json has mlp_only_layers = {}; it must be a list of layers", dense->dump());
    for (const Json& index : dense->as_array())
      if (index.as_integer() == layer) return false;
  }
  return (layer + 1) % step == 0;
}

void write_sparse_layers(const DecoderValue& value, Json& j) {
  const std::vector<int64_t> dense = dense_layers(value);
  const auto is_every = [&](int64_t step) {
    for (int64_t i = 0; i < value.num_layers(); ++i)
      if (((i + 1) % step == 0) == std::ranges::binary_search(dense, i)) return false;
    return true;
  };
  int64_t step = 1;
  while (step < value.num_layers() && !is_every(step)) ++step;
  const bool listed = !is_every(step);
  j.set("decoder_sparse_step", listed ? 1 : step);
  j.set("mlp_only_layers",
        listed ? Json(Json::Array(dense.begin(), dense.end())) : Json(Json::Array{}));
}

kernels::RouterForm read_softmax_router(const Json& j) {
  return {.softmax_first = !boolean(j, "norm_topk_prob")};
}

kernels::RouterForm read_sigmoid_router(const Json& j) {
  const int64_t groups = integer(j, "n_group");
  return {.score = kernels::RouterScore::sigmoid,
          .normalised = boolean(j, "norm_topk_prob"),
          .scale = number(j, "routed_scaling_factor"),
          .groups = groups,
          .chosen_groups = integer(j, "topk_group"),
          .group_best = groups > 1 ? 2 : 1};
}

bool normalises(const nn::MoeConfig& moe) {
  return moe.router.normalised || !moe.router.softmax_first;
}

void read_aux_loss(const Json& j, DecoderValue& value) {
  value.router.stated_aux_loss = number(j, "router_aux_loss_coef");
  value.router.states_router_logits = boolean(j, "output_router_logits");
}

void write_aux_loss(const DecoderValue& value, Json& j, double otherwise) {
  j.set("output_router_logits", value.router.states_router_logits);
  j.set("router_aux_loss_coef", value.router.stated_aux_loss.value_or(otherwise));
}

Json write_common_of_experts(const DecoderValue& value, const CommonForm& form) {
  MG_CHECK(value.first_moe() != nullptr, "a model without experts");
  if (value.first_mlp() != nullptr) return write_common(value, form);
  DecoderValue dense = value;
  for (LayerValue& layer : dense.layers)
    if (const nn::MoeConfig* moe = layer.moe()) layer.feed_forward = nn::MlpConfig(moe->expert);
  return write_common(dense, form);
}

FamilyTensors expert_tensors(const DecoderValue& value, const ExpertNames& names,
                             std::vector<TensorName> others, bool predicts) {
  FamilyTensors map = llama_tensors(value);
  map.layer.push_back({"mlp.router.weight", names.router});
  map.layer.push_back({"mlp.experts.up", names.gate, Take::experts_gate});
  map.layer.push_back({"mlp.experts.up", names.up, Take::experts_up});
  map.layer.push_back({"mlp.experts.down", names.down, Take::experts});
  map.layer.insert(map.layer.end(), others.begin(), others.end());
  if (predicts)
    map.layer.insert(map.layer.end(), std::begin(kPredictionTensors), std::end(kPredictionTensors));
  return map;
}

void read_prediction(const Json& j, DecoderValue& value) {
  constexpr std::string_view kKey = "num_nextn_predict_layers";
  if (present(j, kKey) == nullptr) return;
  value.prediction.depths = count(j, kKey);
  value.prediction.layer = value.layers.back();
}

void write_prediction(const DecoderValue& value, Json& j) {
  j.set("num_nextn_predict_layers", value.prediction.depths);
}

}  // namespace megatron::models
