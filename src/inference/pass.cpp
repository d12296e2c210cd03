#include "inference/pass.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "inference/expert_choices.h"
#include "inference/stage_flow.h"
#include "models/left_out.h"

namespace megatron::inference {
namespace {

Tensor integers(Runtime& runtime, const std::vector<int32_t>& values, std::string_view label) {
  Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations),
                           {static_cast<int64_t>(values.size())}, DType::i32, label);
  if (runtime.device().has_data()) copy_from(t, std::span<const int32_t>(values), runtime.stream());
  return t;
}

Tensor numbers(Runtime& runtime, const std::vector<double>& values, DType type,
               std::string_view label) {
  Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations),
                           {static_cast<int64_t>(values.size())}, type, label);
  if (runtime.device().has_data()) copy_from(t, std::span<const double>(values), runtime.stream());
  return t;
}

// What an encoder reads besides tokens: where the texts begin and end, token types, and the factors
// of embeddings.
void keep_apart(const models::Stage& stage, Runtime& runtime, const ForwardPassPlan& plan,
                nn::Batch& batch) {
  const models::ModelFacts& facts = stage.model()->facts();
  std::vector<int32_t> starts, ends, types;
  std::vector<double> factors;
  for (const PassRow& row : plan.rows) {
    const auto begin = static_cast<int32_t>(starts.size());
    starts.resize(starts.size() + row.tokens.size(), begin);
    ends.resize(starts.size(), static_cast<int32_t>(starts.size()) - 1);
    types.insert(types.end(), row.token_types.begin(), row.token_types.end());
    types.resize(starts.size());
    const auto masked = std::ranges::count(row.tokens, static_cast<int32_t>(facts.left_out_token));
    const double factor = models::embedding_factor(std::ssize(row.tokens), masked);
    for (const int32_t id : row.tokens) factors.push_back(id == facts.left_out_token ? 0 : factor);
  }
  batch.context_tokens.layout = batch.layout;
  batch.segment_starts = integers(runtime, starts, "pass.segment_starts");
  batch.segment_ends = integers(runtime, ends, "pass.segment_ends");
  if (facts.token_types > 0) batch.token_types = integers(runtime, types, "pass.token_types");
  if (facts.left_out_token < 0) return;
  const DType type = kernels::accumulator(stage.parameters()[0]->parameter.value.dtype());
  batch.embedding_factors = numbers(runtime, factors, type, "pass.embedding_factors");
}

// Tokens, positions, labels and weights of a plan.
nn::Batch make_batch(const models::Stage& stage, Runtime& runtime, const ForwardPassPlan& plan) {
  std::vector<int32_t> ids, positions, labels;
  std::vector<double> weights;
  const int64_t offset = stage.model()->facts().position_offset;
  for (const PassRow& row : plan.rows) {
    ids.insert(ids.end(), row.tokens.begin(), row.tokens.end());
    labels.insert(labels.end(), row.labels.begin(), row.labels.end());
    weights.resize(labels.size(), 1);
    for (int64_t t = 0; t < row.count; ++t)
      positions.push_back(static_cast<int32_t>(offset + row.begin + t));
    labels.resize(ids.size());
    weights.resize(ids.size());
  }
  const DType type = stage.parameters()[0]->parameter.value.dtype();
  nn::Batch batch{.layout = {.sequences = 1, .length = static_cast<int64_t>(ids.size())},
                  .tokens = integers(runtime, ids, "pass.tokens"),
                  .positions = integers(runtime, positions, "pass.positions")};
  if (plan.whole_texts) keep_apart(stage, runtime, plan, batch);
  if (!plan.has_labels()) return batch;
  batch.labels = integers(runtime, labels, "pass.labels");
  batch.loss_weights = numbers(runtime, weights, kernels::accumulator(type), "pass.weights");
  return batch;
}

// The texts that the encoder of an encoder-decoder reads, of which equally long ones are adjacent.
nn::Batch encoder_batch(const models::Stage& stage, Runtime& runtime, const ForwardPassPlan& plan) {
  if (plan.texts.empty()) return {};
  std::vector<int32_t> ids, positions;
  nn::Batch batch;
  for (const EncoderText* text : plan.texts) {
    if (batch.texts.empty() || batch.texts.back().length != text->length())
      batch.texts.push_back({.first = std::ssize(ids), .texts = 0, .length = text->length()});
    ++batch.texts.back().texts;
    ids.insert(ids.end(), text->tokens.begin(), text->tokens.end());
    for (int64_t t = 0; t < text->length(); ++t)
      positions.push_back(static_cast<int32_t>(stage.model()->facts().position_offset + t));
  }
  batch.layout = {.sequences = 1, .length = std::ssize(ids)};
  batch.tokens = integers(runtime, ids, "pass.encoder_tokens");
  batch.positions = integers(runtime, positions, "pass.encoder_positions");
  batch.context = batch.texts.back().length;
  return batch;
}

nn::Continuation continuation_of(nn::SequenceState& state, const ForwardPassPlan& plan) {
  std::vector<nn::SequencePart> parts;
  for (const PassRow& row : plan.rows) parts.push_back(part_of(row, plan, state));
  std::vector<nn::EncoderPart> texts;
  for (const EncoderText* text : plan.texts)
    texts.push_back({.count = text->length(), .pages = text->blocks.pages.at(0)});
  return state.next(parts, texts);
}

// Columns of expert_choices() by layer of the model; undefined for layers without experts.
std::vector<Tensor> columns_by_layer(const Tensor& all, const models::ExpertFacts& experts) {
  std::vector<Tensor> columns(experts.layers.size());
  int64_t begin = 0;
  for (size_t layer = 0; layer < columns.size(); ++layer) {
    if (!experts.layers[layer]) continue;
    columns[layer] = all.slice(1, begin, experts.chosen);
    begin += experts.chosen;
  }
  return columns;
}

}  // namespace

nn::SequencePart part_of(const PassRow& row, const ForwardPassPlan& plan,
                         const nn::SequenceState& state) {
  nn::SequencePart part{.begin = row.begin, .count = row.count, .tables = {}};
  if (row.encoder != nullptr) part.encoded = row.encoder->length();
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const bool encoded = state.groups()[g].of_encoder;
    part.tables.emplace_back((encoded ? row.encoder->blocks.pages : *row.pages)[plan.groups[g]]);
  }
  return part;
}

int64_t ForwardPassPlan::encoder_tokens() const {
  int64_t sum = 0;
  for (const EncoderText* text : texts) sum += text->length();
  return sum;
}

int64_t ForwardPassPlan::tokens() const {
  int64_t sum = 0;
  for (const PassRow& row : rows) sum += row.count;
  return sum;
}

bool ForwardPassPlan::has_labels() const {
  return std::ranges::any_of(rows, [](const PassRow& row) { return !row.labels.empty(); });
}

bool ForwardPassPlan::wants_experts() const {
  return std::ranges::any_of(rows, [](const PassRow& row) { return row.expert_choices; });
}

PassAdapters ForwardPassPlan::adapters(const models::Model& model, int64_t padding) const {
  RowAdapters of_decoder, of_encoder;
  for (const PassRow& row : rows) of_decoder.append(row.adapter, row.count);
  if (padding > 0) of_decoder.append(rows.back().adapter, padding);
  for (const EncoderText* text : texts) of_encoder.append(text->adapter.get(), text->length());
  return {std::move(of_decoder), std::move(of_encoder), model->facts().encoder_layers};
}

Logits::Logits(Tensor logits, Runtime& runtime)
    : logits_(std::move(logits)), runtime_(runtime), read_(static_cast<size_t>(logits_.size(0))) {
  runtime_.stream().synchronize();
}

void Logits::read(std::span<const size_t> rows) {
  const bool data = runtime_.device().has_data();
  if (data && logits_.dtype() == DType::f32 && logits_.device().is_host()) return;
  for (const size_t r : rows) {
    if (data) {
      read_[r] = to_floats(logits_.slice(0, static_cast<int64_t>(r), 1));
    } else {
      read_[r].resize(static_cast<size_t>(logits_.size(1)));
    }
  }
}

std::span<const float> Logits::row(size_t index) const {
  if (!read_[index].empty()) return read_[index];
  const auto width = static_cast<size_t>(logits_.size(1));
  return std::span<const float>(logits_.span<float>()).subspan(index * width, width);
}

std::vector<std::vector<float>> Logits::rows() {
  std::vector<size_t> all(read_.size());
  std::iota(all.begin(), all.end(), 0);
  read(all);
  std::vector<std::vector<float>> values;
  for (const size_t r : all) values.emplace_back(row(r).begin(), row(r).end());
  return values;
}

DeviceDraws Logits::draw(std::span<const double> rules, int64_t choices) const {
  if (!draw_any(rules)) return {};
  const int64_t rows = logits_.size(0);
  DrawTensors tensors(runtime_, rows);
  tensors.fill(rules, rows);
  tensors.queue(logits_, choices);
  return tensors.read(rows, rows);
}

std::vector<std::vector<double>> Logits::losses(
    const std::vector<std::vector<int32_t>>& labels) const {
  const int64_t rows = logits_.size(0);
  const DType type = kernels::accumulator(logits_.dtype());
  std::vector<std::vector<double>> losses(labels.size());
  size_t most = 0;
  for (const auto& of_row : labels) most = std::max(most, of_row.size());
  for (size_t i = 0; i < most; ++i) {
    std::vector<int32_t> wanted(labels.size());
    std::vector<double> weights(labels.size());
    for (size_t r = 0; r < labels.size(); ++r) {
      if (i >= labels[r].size()) continue;
      wanted[r] = labels[r][i];
      weights[r] = 1;
    }
    const Tensor loss =
        Tensor::empty(runtime_.arena(MemoryClass::activations), {rows}, type, "logits.loss");
    kernels::table(runtime_.stream())
        .cross_entropy({.logits = logits_,
                        .labels = integers(runtime_, wanted, "logits.labels"),
                        .weights = numbers(runtime_, weights, type, "logits.weights"),
                        .loss = loss},
                       runtime_.stream());
    runtime_.stream().synchronize();
    const std::vector<double> values = runtime_.device().has_data()
                                           ? to_doubles(loss)
                                           : std::vector<double>(static_cast<size_t>(rows));
    for (size_t r = 0; r < labels.size(); ++r)
      if (i < labels[r].size()) losses[r].push_back(values[r]);
  }
  return losses;
}

ForwardPass::ForwardPass(const models::Stage& stage, Runtime& runtime, nn::SequenceState& state,
                         const ForwardPassPlan& plan, comm::Group* stages)
    : stage_(stage),
      runtime_(runtime),
      plan_(plan),
      adapters_(plan.adapters(stage.model())),
      tape_(runtime, Tape::Mode::infer),
      encoder_(encoder_batch(stage, runtime, plan)),
      batch_(make_batch(stage, runtime, plan)) {
  if (adapters_.any()) tape_.add_to_products(&adapters_);
  if (!plan.whole_texts) batch_.continuation = continuation_of(state, plan);
  batch_.context = plan.context;
  if (!plan.texts.empty()) batch_.encoder = &encoder_;
  const Bundle in = receive_hidden(
      stage_, runtime_, {.tokens = plan_.tokens(), .of_encoder = plan_.encoder_tokens()}, stages);
  if (plan.wants_experts()) {
    const models::ModelFacts facts = stage.model()->facts();
    const models::ExpertFacts& experts = facts.experts.value();
    expert_choices_ =
        receive_expert_choices(stage, runtime, {plan.tokens(), choices_per_token(experts)}, stages);
    batch_.continuation.expert_choices = columns_by_layer(expert_choices_, experts);
  }
  out_ = models::forward(stage_, tape_, in, batch_, models::Phase::evaluate);
  MG_ASSERT(!stage_.part().head ||
            out_["hidden"].value.size(0) == plan.tokens());  // tokens must not be divided
  send_hidden(stage_, tape_, out_, stages);
  if (expert_choices_.defined()) send_expert_choices(stage_, tape_, expert_choices_, stages);
}

std::vector<int32_t> ForwardPass::expert_choices() const {
  runtime_.stream().synchronize();
  if (!runtime_.device().has_data())
    return std::vector<int32_t>(static_cast<size_t>(expert_choices_.elements()));
  const Tensor host = on_host(expert_choices_);
  const std::span<const int32_t> choices = host.span<int32_t>();
  return {choices.begin(), choices.end()};
}

std::vector<double> ForwardPass::losses() {
  const Tensor loss = models::head_loss(stage_, tape_, out_, batch_);
  runtime_.stream().synchronize();
  return to_doubles(loss);
}

Logits ForwardPass::last_logits(std::span<const size_t> rows) {
  std::vector<int32_t> ends;  // the last token of each row
  for (const PassRow& row : plan_.rows)
    ends.push_back((ends.empty() ? -1 : ends.back()) + static_cast<int32_t>(row.count));
  std::vector<int32_t> wanted;
  for (const size_t row : rows) wanted.push_back(ends[row]);
  return logits_after(wanted);
}

Logits ForwardPass::logits_after(std::span<const int32_t> tokens) {
  const Tensor at = integers(runtime_, {tokens.begin(), tokens.end()}, "pass.logit_tokens");
  Bundle last;
  for (const char* name : {"hidden", "residual"}) {
    const Tensor all = out_.contains(name) ? out_[name].value : Tensor();
    if (!all.defined()) {
      last.set(name, Var());
      continue;
    }
    const Tensor picked =
        tape_.empty({static_cast<int64_t>(tokens.size()), all.size(1)}, all.dtype(), "pass.last");
    tape_.kernels().embedding({.ids = at, .table = all, .out = picked}, tape_.stream());
    last.set(name, picked);
  }
  return Logits(stage_.loss_logits(tape_, last), runtime_);
}

std::vector<std::vector<float>> ForwardPass::by_row(const Tensor& of_tokens) const {
  runtime_.stream().synchronize();
  const int64_t width = of_tokens.size(1);
  std::vector<std::vector<float>> rows;
  int64_t begin = 0;
  for (const PassRow& row : plan_.rows) {
    if (runtime_.device().has_data())
      rows.push_back(to_floats(of_tokens.slice(0, begin, row.count)));
    else rows.emplace_back(static_cast<size_t>(row.count * width));
    begin += row.count;
  }
  return rows;
}

std::vector<std::vector<float>> ForwardPass::text_scores() {
  const models::ScoredTokens scored = stage_.model()->facts().scored;
  std::vector<std::vector<float>> all = by_row(stage_.logits(tape_, out_, batch_).value);
  const auto labels = static_cast<size_t>(stage_.model()->score_labels());
  using enum models::ScoredTokens;
  if (scored == each_token || scored == span) return all;
  for (std::vector<float>& of_text : all) {
    if (scored == last_token) of_text.erase(of_text.begin(), of_text.end() - labels);
    of_text.resize(labels);
  }
  return all;
}

std::vector<std::vector<float>> ForwardPass::hidden() {
  return by_row(stage_.final_norm(tape_, out_).value);
}

}  // namespace megatron::inference
