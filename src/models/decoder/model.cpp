// T tokens, H hidden, V vocabulary
#include "models/decoder/model.h"

#include <unordered_map>

#include "base/error.h"
#include "models/decoder/mixers/all.h"
#include "models/module_precision.h"
#include "models/prediction_names.h"
#include "nn/text_mean.h"
#include "ops/columns.h"
#include "ops/elementwise.h"
#include "ops/expert_rows.h"
#include "ops/scale.h"
#include "ops/squared_error.h"
#include "parallel/collectives.h"

namespace megatron::models {
namespace {

std::string layer_name(int64_t index) { return "layers." + std::to_string(index); }

// "layers.3" of "layers.3.mlp.up.weight", "embedding" of "embedding.weight".
std::string span_of(const std::string& parameter) {
  const size_t dot = parameter.find('.');
  return parameter.substr(0, parameter.starts_with("layers.") ? parameter.find('.', dot + 1) : dot);
}

double rounded(double value, DType type) {
  const auto single = static_cast<float>(value);
  switch (type) {
    case DType::f64: return value;
    case DType::bf16: return static_cast<double>(static_cast<float>(bf16(single)));
    case DType::f16: return static_cast<double>(static_cast<float>(f16(single)));
    default: return static_cast<double>(single);
  }
}

// Sets the properties of a parameter that optimizers use.
void describe(parallel::ParameterSpec& placed, const DecoderValue& value) {
  const std::string& name = placed.parameter.name;
  constexpr std::string_view kRows = ".rows";  // trained in place of a table's
  const std::string_view table =
      std::string_view(name).substr(0, name.size() - (name.ends_with(kRows) ? kRows.size() : 0));
  if (table == "embedding.weight") placed.role = parallel::Role::embedding;
  if (name.ends_with(".relative_bias.weight")) placed.role = parallel::Role::distances;
  if (table == "output.weight" || table == "score.weight" || table == "pair.weight")
    placed.role = parallel::Role::output;
  if (name.ends_with(".bias")) placed.decay = false;  // expert biases have two dimensions
  placed.orthogonalized = !name.ends_with(".state_space.in_proj.weight");  // as in Megatron-LM
  placed.width_multiplier = value.width_multiplier;
  placed.grows_both_ways = placed.role == parallel::Role::hidden && placed.whole.rank() == 2 &&
                           name != "position_embedding.weight" &&
                           name != "token_type_embedding.weight";
  if (!name.starts_with("layers.")) return;
  const size_t dot = name.find('.', 7);
  const int64_t index = std::stoll(name.substr(7, dot - 7));
  constexpr std::string_view kMixer = ".attention", kCross = ".cross_attention";
  const std::string_view rest = std::string_view(name).substr(dot);
  std::vector<int64_t> rows;
  placed.detached = value.prediction.detached && index >= value.num_layers();
  if (rest.starts_with(kCross)) {
    rows = LayerPart<nn::AttentionConfig>::cross_matrices(*value.layer(index).cross,
                                                          rest.substr(kCross.size()));
  } else if (rest.starts_with(kMixer)) {
    rows = visit_part(value.layer(index).mixer, [&](auto kind, const auto& config) {
      return decltype(kind)::matrices(config, rest.substr(kMixer.size()));
    });
  }
  if (!rows.empty()) placed.matrices = std::move(rows);
}

}  // namespace

DecoderModel::DecoderModel(Model model, const DecoderValue& value,
                           const nn::Builder::PlacementOf& placement,
                           const nn::AdapterRules* adapters,
                           const std::optional<LowPrecisionLayers>& low_precision, Runtime& runtime,
                           DType type, uint64_t seed, const parallel::ModelPart& part,
                           const parallel::ModelRanks& ranks)
    : model_(std::move(model)),
      value_(value),
      part_(part),
      tensor_(ranks.tensor),
      context_(ranks.context_parallel(value.num_layers() - 1)),
      embedding_scale_(value.rounds_embedding_scale ? rounded(value.embedding_scale, type)
                                                    : value.embedding_scale) {
  MG_ASSERT(part.first_layer >= 0 && part.layers >= 0 &&
            part.first_layer + part.layers <= value.num_layers());
  for (int64_t depth = 0; depth <= value.prediction.depths; ++depth)
    outputs_.push_back(PredictionDepth::output_name(depth));
  nn::Builder builder(runtime, type, placement, ranks, adapters, seed);
  if (part.embedding) build_embedding(builder, seed);
  build_positions(runtime, type);
  build_layers(builder, low_precision, seed);
  if (has_final_norm())
    final_norm_ =
        std::make_unique<nn::AddNorm>(builder, "final_norm", value.hidden_size, value.final_norm);
  build_depths(builder, seed);
  if (part.head) {
    build_head(builder, low_precision);
  } else if (depths() > 0 && !part.embedding) {
    build_table(builder);
  }
  list_parameters(builder);
  list_states(builder);
  list_blocks();
  list_boundary();
}

// The embedding's table, if this part has a use for it: lookups of the tokens, those of the depths
// of prediction, and the output layer. The table of another part than the first is a copy.
void DecoderModel::build_table(nn::Builder& builder) {
  const DecoderValue& v = value_;
  const int of_depths = static_cast<int>(depths()),
            losses = 1 + static_cast<int>(predicted_losses());
  std::vector<int> uses;
  const auto add_use = [&](int ops) {
    uses.push_back(ops);
    return static_cast<int>(std::ssize(uses)) - 1;
  };
  if (part_.embedding) add_use(v.encoder_layers > 0 ? 2 : 1);
  if (of_depths > 0) prediction_use_ = add_use(of_depths);
  if (!v.untied && part_.head) output_.use = add_use(losses);
  if (uses.empty()) return;
  embedding_ = std::make_unique<nn::VocabularyTable>(builder, "embedding", v.vocab_size,
                                                     v.hidden_size, embedding_init(v), uses);
}

void DecoderModel::build_embedding(nn::Builder& builder, uint64_t seed) {
  const DecoderValue& v = value_;
  build_table(builder);
  embedding_->adapt_lookups(builder);
  const int texts = v.encoder_layers > 0 ? 2 : 1;
  if (v.learned_positions) {
    position_embedding_ = std::make_unique<nn::PositionTable>(
        builder, "position_embedding", v.position_offset + v.max_position_embeddings, v.hidden_size,
        embedding_init(v), texts);
  }
  if (v.token_types > 0)
    token_type_embedding_ = std::make_unique<nn::PositionTable>(
        builder, "token_type_embedding", v.token_types, v.hidden_size, embedding_init(v), texts);
  if (v.embedding_norm)
    embedding_norm_ =
        std::make_unique<nn::AddNorm>(builder, "embedding_norm", v.hidden_size, *v.embedding_norm);
  embedding_dropout_ =
      std::make_unique<nn::Dropout>(builder, "embedding.hidden_dropout", v.hidden_dropout, seed);
  if (v.encoder_layers > 0)
    target_dropout_ = std::make_unique<nn::Dropout>(builder, "target_embedding.hidden_dropout",
                                                    v.hidden_dropout, seed);
}

// The tables that layers of this part use.
void DecoderModel::build_positions(Runtime& runtime, DType type) {
  const auto add = [&](const LayerValue& layer) {
    visit_part(layer.mixer, [&](auto kind, const auto& config) {
      if (const auto use = decltype(kind)::rotary(config))
        positions_.add(*use, value_, runtime, type);
    });
    if (const auto* a = layer.attention()) positions_.add(*a, value_, runtime, type);
  };
  for (int64_t i = 0; i < part_.layers; ++i) add(value_.layer(part_.first_layer + i));
  if (depths() > 0) add(value_.prediction.layer);
}

void DecoderModel::build_layers(nn::Builder& builder,
                                const std::optional<LowPrecisionLayers>& low_precision,
                                uint64_t seed) {
  for (int64_t i = 0; i < part_.layers; ++i) {
    static_cast<void>(builder.take_used());
    if (low_precision)
      builder.set_low_precision([&, counts = layer_counts(this->model()->facts()),
                                 layer = part_.first_layer + i](const std::string& weight) {
        return formats_of(*low_precision, layer, counts, weight);
      });
    layers_.push_back(
        std::make_unique<DecoderLayer>(builder, LayerPlace{.model = value_,
                                                           .positions = positions_,
                                                           .index = part_.first_layer + i,
                                                           .state_layer = i,
                                                           .seed = seed}));
    layer_parameters_.push_back(builder.take_used());
    if (ends_encoder(i))
      encoder_norm_ = std::make_unique<nn::AddNorm>(builder, "encoder_norm", value_.hidden_size,
                                                    value_.final_norm);
  }
  builder.set_low_precision(nullptr);
}

// True if the i-th layer of this part is the encoder's last.
bool DecoderModel::ends_encoder(int64_t i) const {
  return part_.first_layer + i + 1 == value_.encoder_layers;
}

void DecoderModel::build_head(nn::Builder& builder,
                              const std::optional<LowPrecisionLayers>& low_precision) {
  const DecoderValue& v = value_;
  if (v.headless) return;
  if (v.score_labels > 0) return build_score_head(builder);
  if (v.head_transform)
    head_transform_ =
        std::make_unique<HeadTransformLayer>(builder, "head_transform", *v.head_transform, v);
  if (!part_.embedding) build_table(builder);
  if (!v.untied) {
    if (!part_.embedding) embedding_->adapt_tied_output(builder);
    output_.table = embedding_.get();
    if (v.output_bias) embedding_->add_bias(builder, "output_bias");
  } else {
    const bool mup = v.width_multiplier != 1;
    const int ops = 1 + static_cast<int>(predicted_losses());
    // With muP, the output layer is initialized like an embedding.
    own_output_ = std::make_unique<nn::VocabularyTable>(
        builder, "output", v.vocab_size, v.hidden_size, mup ? embedding_init(v) : matrix_init(v),
        std::span(&ops, 1));
    own_output_->adapt_output(builder);
    if (v.output_bias) own_output_->add_bias(builder, "output_bias");
    output_ = {.table = own_output_.get(), .use = 0};
  }
  if (low_precision && low_precision->output) {
    builder.set_low_precision([&](const auto&) { return low_precision->formats; });
    output_.table->quantize_output(builder);
    builder.set_low_precision(nullptr);
  }
  if (v.pair_head) build_pair_head(builder);
}

void DecoderModel::build_score_head(nn::Builder& builder) {
  const DecoderValue& v = value_;
  if (v.score_transform)
    head_transform_ =
        std::make_unique<HeadTransformLayer>(builder, "score_transform", *v.score_transform, v);
  constexpr int kOps = 1;
  own_output_ = std::make_unique<nn::VocabularyTable>(
      builder, "score", v.score_labels, v.hidden_size, matrix_init(v), std::span(&kOps, 1));
  own_output_->adapt_output(builder);
  if (v.score_bias) own_output_->add_bias(builder, "score_bias");
  output_ = {.table = own_output_.get(), .use = 0};
}

void DecoderModel::build_pair_head(nn::Builder& builder) {
  constexpr HeadTransform kPooler{.kind = HeadTransform::Kind::pooler};
  constexpr int kOps = 1;
  pair_pooler_ = std::make_unique<HeadTransformLayer>(builder, "pooler", kPooler, value_);
  pair_output_ = std::make_unique<nn::VocabularyTable>(builder, "pair", 2, value_.hidden_size,
                                                       matrix_init(value_), std::span(&kOps, 1));
  pair_output_->add_bias(builder, "pair_bias");
}

void DecoderModel::build_depths(nn::Builder& builder, uint64_t seed) {
  const Trunk trunk{
      .final_norm = [this](Tape& tape, const Bundle& in) { return final_norm(tape, in); },
      .embedding = [this](
                       Tape& tape,
                       const Tensor& tokens) { return embedded(tape, tokens, prediction_use_); }};
  for (int64_t depth = 1; depth <= depths(); ++depth)
    depths_.push_back(
        std::make_unique<PredictionDepth>(builder,
                                          LayerPlace{.model = value_,
                                                     .positions = positions_,
                                                     .index = value_.num_layers() + depth - 1,
                                                     .seed = seed},
                                          depth, trunk));
}

void DecoderModel::list_parameters(nn::Builder& builder) {
  owned_ = builder.take();
  adapters_ = builder.take_adapters();
  expert_adapters_ = builder.take_expert_adapters();
  for (const auto& placed : owned_) {
    describe(*placed, value_);
    if (placed->role == parallel::Role::embedding) {
      const bool predicts = value_.prediction.depths > 0;
      placed->used_in = {-1};
      if (predicts) placed->used_in.push_back(value_.num_layers());
      if (!value_.untied) placed->used_in.push_back(parallel::kHeadPlace);
      placed->first_use = part_.embedding ? 0 : predicts && !part_.has_predictions() ? 2 : 1;
    }
    // The order of the gradient norm's blocks, in whichever stages these are.
    if (placed->role == parallel::Role::output) placed->used_in = {parallel::kHeadPlace};
    if (placed->parameter.name.starts_with("final_norm.")) placed->used_in = {value_.num_layers()};
    // Its first use counts it.
    placed->counted = placed->counted && placed->first_use == 0;
    parameters_.push_back(placed.get());
  }
}

void DecoderModel::list_states(nn::Builder& builder) {
  owned_states_ = builder.take_states();
  for (const auto& state : owned_states_) states_.push_back(state.get());
  owned_step_sums_ = builder.take_step_sums();
  for (const auto& sum : owned_step_sums_) step_sums_.push_back(sum.get());
}

void DecoderModel::list_blocks() {
  std::unordered_map<std::string, std::vector<Parameter*>> by_span;
  for (const auto& placed : owned_)
    by_span[span_of(placed->parameter.name)].push_back(&placed->parameter);
  const auto parameters_below = [&](std::initializer_list<std::string> spans) {
    std::vector<Parameter*> found;
    for (const std::string& span : spans)
      found.insert(found.end(), by_span[span].begin(), by_span[span].end());
    return found;
  };
  if (part_.embedding) {
    blocks_.push_back({{.name = "embedding",
                        .parameters = parameters_below({"embedding", "position_embedding",
                                                        "token_type_embedding", "embedding_norm"})},
                       {[this](Tape& tape, Flow& flow, const nn::Batch& batch, Phase phase) {
                         flow.bundle = embed(tape, batch, phase);
                       }}});
  }
  for (int64_t i = 0; i < part_.layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const DecoderLayer* layer = layers_[at].get();
    const std::string name = layer_name(part_.first_layer + i);
    blocks_.push_back({.span = {.name = name, .parameters = layer_parameters_[at]},
                       .segments = layer->segments(),
                       .of_encoder = part_.first_layer + i < value_.encoder_layers,
                       .layer = true});
    if (!ends_encoder(i)) continue;
    blocks_.push_back({{.name = "encoder_norm", .parameters = parameters_below({"encoder_norm"})},
                       {[this](Tape& tape, Flow& flow, const nn::Batch& batch, Phase) {
                         flow.bundle = end_encoder(tape, flow.bundle, batch);
                       }}});
  }
  if (depths() > 0 && !part_.head)
    blocks_.push_back({{.name = "final_norm", .parameters = parameters_below({"final_norm"})},
                       {[this](Tape& tape, Flow& flow, const nn::Batch&, Phase) {
                         flow.bundle = {{outputs_.front(), final_norm(tape, flow.bundle)}};
                       }}});
  for (int64_t i = 0; i < depths(); ++i) {
    const std::string name = layer_name(value_.num_layers() + i);
    const std::string norm = i == 0 && part_.head ? "final_norm" : "";
    blocks_.push_back(
        {.span = {.name = name, .parameters = parameters_below({norm, "embedding", name})},
         .segments = depths_[static_cast<size_t>(i)]->segments(),
         .predicts = true,
         .layer = true});
  }
  if (part_.head) {
    const std::string output = value_.score_labels > 0 ? "score"
                               : value_.untied         ? "output"
                                                       : "embedding";
    head_ = {.name = "head",
             .parameters =
                 parameters_below({"final_norm", "head_transform", "score_transform", output,
                                   "output_bias", "score_bias", "pooler", "pair", "pair_bias"})};
  }
}

void DecoderModel::list_boundary() {
  const auto before = [this](int64_t layer) {
    const bool encodes = layer < value_.encoder_layers;
    std::vector<BoundaryTensor> tensors = {{.name = kHidden, .of_encoder = encodes}};
    if (encodes) tensors.push_back({.name = kTarget});
    else if (value_.encoder_layers > 0) tensors.push_back({.name = kEncoded, .of_encoder = true});
    if (reads_embedded(value_, layer)) tensors.push_back({.name = kEmbedded});
    const nn::AttentionConfig* a =
        layer < value_.num_layers() ? value_.layer(layer).attention() : nullptr;
    if (a != nullptr && a->relative.buckets > 0 && a->relative.shared)
      tensors.push_back({.name = kDistanceBias,
                         .of_encoder = encodes,
                         .rows = 2 * a->relative.max_distance + 1,
                         .width = a->heads / tensor_.size(),
                         .wide = true});
    return tensors;
  };
  const auto predicted = [this] {
    std::vector<BoundaryTensor> tensors;
    for (const std::string& name : outputs_)
      tensors.push_back({.name = name, .predicted = !tensors.empty()});
    return tensors;
  };
  const bool after_depths = value_.prediction.depths > 0 &&
                            part_.predictions == parallel::ModelPart::Predictions::earlier,
             leaves_depths = after_depths || depths() > 0;
  if (!part_.embedding) entry_ = after_depths ? predicted() : before(part_.first_layer);
  if (!part_.head) exit_ = leaves_depths ? predicted() : before(part_.first_layer + part_.layers);
}

Var DecoderModel::embedded(Tape& tape, const Tensor& tokens, int use) const {
  return ops::scale(tape, embedding_->look_up(tape, tokens, use), embedding_scale_);
}

// Scales the embeddings of each token by the batch's factor.
Var DecoderModel::without_left_out(Tape& tape, const Var& x_TH, const nn::Batch& batch) const {
  if (value_.left_out_token < 0) return x_TH;
  const parallel::Slice rows = tensor_.tokens(batch.layout.rows());
  return ops::scale_rows(tape, x_TH,
                         Var(batch.embedding_factors.slice(0, rows.global_begin, rows.size)));
}

Bundle DecoderModel::embed(Tape& tape, const nn::Batch& batch, Phase phase) const {
  if (value_.encoder_layers == 0) {
    const Var x_TH = embedded_text(tape, batch, *embedding_dropout_, phase);
    Bundle out{{"hidden", x_TH}, {"residual", Var()}};
    if (reads_embedded(value_)) out.set(kEmbedded, ops::summed_apart(tape, x_TH));
    return out;
  }
  if (!models::reads_encoder(batch))
    return {{std::string(kTarget), embedded_text(tape, batch, *target_dropout_, phase)}};
  const Var source = embedded_text(tape, *batch.encoder, *embedding_dropout_, phase);
  return {{"hidden", source},
          {"residual", Var()},
          {std::string(kTarget), embedded_text(tape, batch, *target_dropout_, phase)}};
}

// The encoder's output, and the decoder's first input.
Bundle DecoderModel::end_encoder(Tape& tape, const Bundle& in, const nn::Batch& batch) const {
  if (!models::reads_encoder(batch)) return {{"hidden", in[kTarget]}, {"residual", Var()}};
  return {{"hidden", in[kTarget]},
          {"residual", Var()},
          {std::string(kEncoded), (*encoder_norm_)(tape, in["hidden"], residual_of(in)).normed}};
}

Var DecoderModel::embedded_text(Tape& tape, const nn::Batch& batch, const nn::Dropout& dropout,
                                Phase phase) const {
  Var x_TH = without_left_out(tape, embedded(tape, batch.tokens, 0), batch);
  if (position_embedding_ != nullptr)
    x_TH = ops::add(tape, x_TH, position_embedding_->look_up(tape, batch.positions));
  if (token_type_embedding_ != nullptr)
    x_TH = ops::add(tape, x_TH, token_type_embedding_->look_up(tape, batch.token_types));
  if (embedding_norm_ != nullptr) x_TH = (*embedding_norm_)(tape, x_TH, Var()).normed;
  return dropout(tape, x_TH, batch, phase == Phase::train);
}

Var DecoderModel::final_norm(Tape& tape, const Bundle& in) const {
  MG_ASSERT(part_.head || depths() > 0);
  const std::string trunk = PredictionDepth::output_name(0);
  if (in.contains(trunk)) return in[trunk];
  if (final_norm_ == nullptr) return flowing(tape, in);
  return (*final_norm_)(tape, in["hidden"], residual_of(in)).normed;
}

// The scale of the logits is applied here, to H elements per token instead of V.
Var DecoderModel::head_input(Tape& tape, const Var& of_trunk, const nn::Batch* batch) const {
  Var x_TH = of_trunk;
  if (value_.scored == ScoredTokens::mean) {
    MG_ASSERT(batch != nullptr);
    x_TH = nn::text_mean(tape, x_TH, *batch, value_.first_attention()->heads, tensor_, context_);
  }
  if (head_transform_ != nullptr) x_TH = (*head_transform_)(tape, x_TH);
  return ops::scale(tape, x_TH, value_.logits_scale);
}

// Published encoder-decoders multiply the input of the output layer, others the logits.
Var DecoderModel::output_input(Tape& tape, const Bundle& in) const {
  const Var x_TH = final_norm(tape, in);
  if (value_.encoder_layers > 0) return ops::scale(tape, x_TH, value_.logits_scale);
  return head_transform_ == nullptr ? x_TH : (*head_transform_)(tape, x_TH);
}

Var DecoderModel::pair_logits(Tape& tape, const Bundle& in) const {
  if (pair_output_ == nullptr) return {};
  return pair_output_->logits(tape, (*pair_pooler_)(tape, final_norm(tape, in)), 0);
}

// Log-probabilities of the pairs' labels [T].
Var DecoderModel::pair_values(Tape& tape, const Var& x_TH, const nn::Batch& batch) const {
  return pair_output_->log_probabilities(tape, (*pair_pooler_)(tape, x_TH), batch.pairs, 0);
}

Tensor DecoderModel::loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const {
  if (value_.score_labels == 1)
    return ops::squared_error(tape, logits(tape, in, batch), batch.targets, batch.loss_weights);
  const Tensor loss = output_.table->loss(tape, head_input(tape, in, &batch), batch.labels,
                                          batch.loss_weights, output_.use, value_.logits_soft_cap);
  if (tape.pass() == Pass::evaluate) return loss;
  const std::vector<PredictionLosses> of_depths = prediction_losses(tape, in, batch);
  for (size_t k = 0; k < of_depths.size(); ++k) {
    const auto depth = static_cast<int64_t>(k) + 1;
    const Tensor& counts = batch.predicted[k].counts;
    tape.report(prediction_loss_metric(depth), {.values = of_depths[k].losses, .weights = counts});
    tape.report(prediction_acceptance_metric(depth),
                {.values = of_depths[k].hits, .weights = counts});
  }
  return loss;
}

std::vector<PredictionLosses> DecoderModel::prediction_losses(Tape& tape, const Bundle& in,
                                                              const nn::Batch& batch) const {
  std::vector<PredictionLosses> losses;
  for (int64_t depth = 1; depth <= predicted_losses(); ++depth) {
    const std::string& name = outputs_[static_cast<size_t>(depth)];
    if (!in.contains(name)) break;  // Phase::evaluate leaves them out
    const nn::PredictedTokens& of = batch.predicted.at(static_cast<size_t>(depth - 1));
    PredictionLosses& one = losses.emplace_back();
    one.hits = tape.empty(of.loss_weights.shape(), of.loss_weights.dtype(), "prediction.hits");
    one.losses = output_.table->loss(tape, ops::scale(tape, in[name], value_.logits_scale),
                                     of.labels, of.loss_weights, output_.use,
                                     value_.logits_soft_cap, value_.prediction.detached, one.hits);
  }
  return losses;
}

Var DecoderModel::logits(Tape& tape, const Bundle& in, const nn::Batch& batch) const {
  return output_.table->logits(tape, head_input(tape, in, &batch), output_.use,
                               value_.logits_soft_cap);
}

Var DecoderModel::objective_values(Tape& tape, const Bundle& in, const nn::Batch& batch) const {
  if (value_.score_labels > 0) return logits(tape, in, batch);
  if (value_.headless)
    return parallel::gather_rows(tape, final_norm(tape, in), tensor_, "hidden states");
  const Var x_TH = final_norm(tape, in);  // once: a parameter's uses are counted
  const Var values_T = output_.table->log_probabilities(
      tape, head_input(tape, x_TH), batch.labelled, output_.use, value_.logits_soft_cap);
  if (pair_output_ == nullptr) return values_T;
  return ops::join_columns(tape, values_T, pair_values(tape, x_TH, batch));
}

Tensor DecoderModel::entropies(Tape& tape, const Bundle& in, const nn::Batch& batch) const {
  if (value_.score_labels > 0) return {};
  return output_.table->entropies(tape, head_input(tape, in).value, batch.labelled, output_.use,
                                  value_.logits_soft_cap);
}

Tensor DecoderModel::loss_logits(Tape& tape, const Bundle& in) const {
  return output_.table->loss_logits(tape, head_input(tape, in).value, output_.use,
                                    value_.logits_soft_cap);
}

std::vector<nn::LayerCache> DecoderModel::layer_caches() const {
  std::vector<nn::LayerCache> caches;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool encodes = part_.first_layer + static_cast<int64_t>(i) < value_.encoder_layers;
    caches.push_back(encodes ? nn::LayerCache{} : layers_[i]->cache());
  }
  return caches;
}

}  // namespace megatron::models
