#include "models/decoder/definition.h"

#include <algorithm>

#include "base/error.h"
#include "models/adapters/adapter_rules.h"
#include "models/decoder/definition_parts.h"
#include "models/decoder/feed_forwards/all.h"
#include "models/decoder/mixers/all.h"
#include "models/decoder/model.h"
#include "models/prediction_names.h"

namespace megatron::models {
namespace {

double real(int64_t value) { return static_cast<double>(value); }

class DecoderDefinition final : public ModelDefinition,
                                public std::enable_shared_from_this<DecoderDefinition> {
 public:
  DecoderDefinition(DecoderValue value, const DecoderFamily& family, ConfigForm form,
                    std::shared_ptr<const LoraConfig> adapter,
                    const std::optional<LowPrecisionLayers>& low_precision)
      : ModelDefinition(facts_of(value, family.name)),
        v_(std::move(value)),
        family_(family),
        form_(form),
        adapter_(std::move(adapter)),
        low_precision_(low_precision) {
    if (adapter_ != nullptr) rules_ = adapter_rules(*adapter_);
  }

  double training_flops(const TextLength& length) const override;
  int64_t context_class(int64_t length) const override;
  Json describe() const override { return to_json(v_); }
  Json config_json(DType stored) const override { return write_config(family_, v_, stored, form_); }
  bool is_surplus(std::string_view tensor) const override {
    const std::string_view rest = behind_prefix(tensor);
    return is_computed_buffer(rest) || is_copy_for_prediction(rest) ||
           (v_.score_labels > 0 && is_of_output(tensor)) ||
           std::ranges::any_of(family_.buffers,
                               [&](std::string_view pattern) { return matches(pattern, rest); });
  }
  std::string prediction_layer(std::string_view tensor) const override {
    const int64_t first = v_.prediction.depths,
                  end = std::max(family_.prediction_layers, v_.prediction.left_out);
    for (int64_t i = first; i < end; ++i) {
      const std::string layer = "layers." + std::to_string(v_.num_layers() + i);
      const std::string_view rest = behind_prefix(tensor);
      if (rest.starts_with(layer + "."))
        return std::string(tensor.substr(0, tensor.size() - rest.size())) + layer;
    }
    return {};
  }
  std::string original_of_copy(std::string_view tensor) const override {
    return original_in_block(family_.tensors(v_), v_, tensor);
  }
  std::string_view base_prefix() const override { return family_.base_prefix; }
  std::vector<MetricDefinition> metrics() const override {
    std::vector<nn::ExpertLayer> layers;
    for (int64_t i = 0; i < num_layers() + v_.prediction.depths; ++i)
      if (const auto* moe = v_.layer(i).moe())
        layers.push_back({i, moe->experts, moe->correction_bias});
    std::vector<MetricDefinition> metrics;
    for (std::string& name : prediction_metrics(v_.prediction.depths))
      metrics.push_back({.name = std::move(name)});
    for (MetricDefinition& of_routers : nn::router_metrics(layers, v_.router))
      metrics.push_back(std::move(of_routers));
    return metrics;
  }
  std::optional<TiedOutput> tied_output() const override;
  Model with(const ModelChanges& changes) const override;
  const LoraConfig* adapter() const override { return adapter_.get(); }
  const LowPrecisionLayers* low_precision() const override {
    return low_precision_ ? &*low_precision_ : nullptr;
  }
  Model base() const override { return decoder_model(v_, family_, form_); }
  UpcycledModel upcycled(const UpcyclingFlags& flags) const override {
    return upcycled_decoder(v_, family_, form_, flags);
  }
  std::unique_ptr<Stage> build(Runtime& runtime, DType type, uint64_t seed,
                               const parallel::ModelPart& part,
                               const parallel::ModelRanks& ranks) const override {
    const auto placement = [this, map = family_.tensors(v_)](const std::string& name,
                                                             const Shape& shape) {
      return placement_of(map, v_, name, shape);
    };
    return std::make_unique<DecoderModel>(Model(shared_from_this()), v_, placement,
                                          adapter_ == nullptr ? nullptr : &rules_, low_precision_,
                                          runtime, type, seed, part, ranks);
  }
  std::vector<double> plain_losses(const PlainTensors& weights, const PlainText& text,
                                   std::span<const int32_t> labels) const override {
    return models::plain_losses(v_, family_.tensors(v_), weights, text, labels);
  }
  double plain_pair_loss(const PlainTensors& weights, const PlainText& text,
                         int32_t label) const override {
    return models::plain_pair_loss(v_, family_.tensors(v_), weights, text, label);
  }
  std::vector<PlainPrediction> plain_predictions(const PlainTensors& weights,
                                                 std::span<const int32_t> tokens,
                                                 std::span<const int32_t> labels) const override {
    return models::plain_predictions(v_, family_.tensors(v_), weights, tokens, labels);
  }

 private:
  // A tensor's name without the base model's prefix, which files may lack or have twice.
  std::string_view behind_prefix(std::string_view tensor) const {
    const std::string_view prefix = family_.base_prefix;
    while (!prefix.empty() && tensor.starts_with(prefix)) tensor.remove_prefix(prefix.size());
    return tensor;
  }
  // True for a depth's own copy of the embedding or of the output layer.
  bool is_copy_for_prediction(std::string_view rest) const {
    for (int64_t i = 0; i < v_.prediction.depths; ++i) {
      const std::string layer = "layers." + std::to_string(v_.num_layers() + i);
      if (!rest.starts_with(layer)) continue;
      const std::string_view end = rest.substr(layer.size());
      if (end == kPredictionEmbedding || end == kPredictionHead) return true;
    }
    return false;
  }
  // True for a tensor of the language model's output layer.
  bool is_of_output(std::string_view tensor) const {
    const std::string name =
        placement_of(family_.tensors(v_), v_, "output.weight", {v_.vocab_size, v_.hidden_size})
            .tensors.at(0)
            .name;
    return tensor.substr(0, tensor.rfind('.')) == name.substr(0, name.rfind('.'));
  }
  const DecoderValue v_;
  const DecoderFamily& family_;
  const ConfigForm form_;
  const std::shared_ptr<const LoraConfig> adapter_;  // null: none
  nn::AdapterRules rules_;                           // of it
  const std::optional<LowPrecisionLayers> low_precision_;
};

double DecoderDefinition::training_flops(const TextLength& length) const {
  const double h = real(v_.hidden_size), depths = real(v_.prediction.depths),
               tokens = real(length.tokens),
               head = 2 * tokens * h * real(v_.score_labels > 0 ? v_.score_labels : v_.vocab_size);
  const auto of_layer = [&](const LayerValue& layer, int64_t own) {
    const auto of_part = [&](auto kind, const auto& config) {
      return decltype(kind)::forward_flops(config, v_.hidden_size, own);
    };
    const double flops = visit_part(layer.mixer, of_part) + visit_part(layer.feed_forward, of_part);
    return layer.cross ? flops + LayerPart<nn::AttentionConfig>::cross_flops(
                                     *layer.cross, v_.hidden_size, own, length.encoder)
                       : flops;
  };
  const int transforms = (v_.head_transform ? 1 : 0) + (v_.score_transform ? 1 : 0);
  double forward = v_.headless ? 0 : head + 2 * transforms * tokens * h * h;
  if (v_.pair_head) forward += 2 * tokens * h * (h + 2);  // pooler and two labels
  if (v_.scored == ScoredTokens::mean) forward += 2 * 2 * tokens * tokens * h;  // nn/text_mean.h
  for (int64_t i = 0; i < v_.num_layers(); ++i)
    forward += of_layer(v_.layer(i), i < v_.encoder_layers ? length.encoder : length.tokens);
  if (depths > 0)
    forward += depths * (of_layer(v_.prediction.layer, length.tokens) + 4 * tokens * h * h + head);
  return 3 * forward;
}

std::optional<ModelDefinition::TiedOutput> DecoderDefinition::tied_output() const {
  if (v_.untied) return {};
  const FamilyTensors map = family_.tensors(v_);
  const auto name = [&](const std::string& parameter) {
    return placement_of(map, v_, parameter, {v_.vocab_size, v_.hidden_size}).tensors.at(0).name;
  };
  return TiedOutput{.output = name("output.weight"), .table = name("embedding.weight")};
}

// Tables of the same kind of scaling change at different lengths: the class is that of the table
// that changes most often.
int64_t DecoderDefinition::context_class(int64_t length) const {
  int64_t changes = 0;
  for (const auto& [name, rotary] : v_.rotary) {
    if (!rotary.depends_on_length() || length <= rotary.original_positions) continue;
    if (rotary.scaling == nn::RopeScaling::dynamic) return length;
    ++changes;
  }
  return -changes;
}

// The number of depths in files of the model does not change when it leaves them out.
void set_prediction(DecoderValue& value, const PredictionChange& change) {
  PredictionValue& p = value.prediction;
  const int64_t known = std::max(p.depths, p.left_out);
  if (known == 0) p.layer = value.layers.back();
  p.depths = change.depths;
  p.left_out = change.depths > 0 ? 0 : known;
  p.loss_scale = change.loss_scale;
  p.detached = change.detached;
}

// As in transformers' classes for sequence classification: no factor or cap of logits.
void set_score_head(DecoderValue& value, const ScoreHead& head, const DecoderFamily& family) {
  const bool of_tokens =
      head.scored == ScoredTokens::each_token || head.scored == ScoredTokens::span;
  const nn::AttentionConfig* a = value.first_attention();
  MG_CHECK(!of_tokens || (a != nullptr && a->two_sided && value.encoder_layers == 0),
           "a head for {} needs an encoder (BERT, ModernBERT, ESM-2 and the like), whose tokens "
           "attend to later ones, and the model is a {}",
           head.scored == ScoredTokens::span ? "answers" : "labels of tokens", family.name);
  set_prediction(value, {});
  if (family.set_score_head != nullptr && value.score_labels == 0)
    family.set_score_head(value, head.scored);
  value.score_label_names = head.label_names;
  value.score_labels = std::ssize(head.label_names);
  value.score_pad_token = head.padding;
  value.score_problem = head.multi_label          ? ScoreProblem::multi_label
                        : value.score_labels == 1 ? ScoreProblem::unnamed
                                                  : ScoreProblem::by_labels;
  value.untied = true;
  value.logits_scale = 1;
  value.logits_soft_cap = 0;
}

// Surplus layers are dropped at the end; additional layers repeat those from the first on.
Model DecoderDefinition::with(const ModelChanges& changes) const {
  DecoderValue other = v_;
  if (changes.num_layers) {
    const auto count = static_cast<size_t>(*changes.num_layers);
    for (size_t i = 0; other.layers.size() < count; ++i) other.layers.push_back(v_.layers[i]);
    other.layers.resize(count);
  }
  if (changes.context_length) {
    MG_CHECK(*changes.context_length > 0 && *changes.context_length <= kMaxPositions,
             "--inference-max-seq-length is {}; it must lie in [1, {}]", *changes.context_length,
             kMaxPositions);
    MG_CHECK(!v_.learned_positions || *changes.context_length <= v_.max_position_embeddings,
             "--inference-max-seq-length is {}, but the model has learned {} positions; lower it",
             *changes.context_length, v_.max_position_embeddings);
    other.context = changes.context_length;
  }
  other.hidden_dropout = changes.hidden_dropout.value_or(v_.hidden_dropout);
  other.attention_dropout = changes.attention_dropout.value_or(v_.attention_dropout);
  other.mlp_chunks = changes.mlp_chunks.value_or(v_.mlp_chunks);
  other.start_token = changes.start_token.value_or(v_.start_token);
  if (changes.router) {
    other.router = *changes.router;
    other.router.stated_aux_loss = v_.router.stated_aux_loss;
    other.router.states_router_logits = v_.router.states_router_logits;
  }
  const auto& adapter = changes.adapter != nullptr ? changes.adapter : adapter_;
  if (changes.prediction) set_prediction(other, *changes.prediction);
  if (changes.score_head) set_score_head(other, *changes.score_head, family_);
  auto low_precision = changes.low_precision ? changes.low_precision : low_precision_;
  if (changes.leaves_low_precision) low_precision.reset();
  const Model changed = decoder_model(other, family_, form_, adapter, low_precision);
  if (changes.adapter != nullptr) {
    Runtime shapes_only({DeviceKind::meta, 0}, 1);
    check_adapter(*adapter,
                  *changed->build(shapes_only, DType::f32, 0, {.layers = num_layers()}, {}));
  }
  const bool predicts = changes.prediction && changes.prediction->depths > 0;
  if (!changes.score_head && !predicts) return changed;
  // Throws Error if config.json could not say so.
  static_cast<void>(changed->config_json(DType::f32));
  return changed;
}

}  // namespace

Model decoder_model(const DecoderValue& value, const DecoderFamily& family, ConfigForm form,
                    std::shared_ptr<const LoraConfig> adapter,
                    const std::optional<LowPrecisionLayers>& low_precision) {
  value.check();
  return Model(
      std::make_shared<DecoderDefinition>(value, family, form, std::move(adapter), low_precision));
}

Model decoder_model(const DecoderValue& value) { return decoder_model(value, family_for(value)); }

}  // namespace megatron::models
