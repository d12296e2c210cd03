#include "selftest/verify_encoder.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "post_training/classification.h"
#include "training/whole_model.h"

namespace megatron::selftest {
namespace {

constexpr int64_t kNone = -100;  // no label, in transformers

std::vector<int64_t> read_integers(Expected& expected, std::string_view name, const Shape& shape) {
  const std::string key(name);
  MG_CHECK(expected.contains(key), "expected.safetensors has no {}", key);
  MG_CHECK(expected.shape(key) == shape, "{} has shape {}; it must be {}", key,
           expected.shape(key).str(), shape.str());
  return expected.integers(key);
}

int32_t label_of(int64_t value, int64_t end, std::string_view tensor) {
  MG_CHECK(value >= 0 && value < end, "{} contains {}; the model has labels in [0, {})", tensor,
           value, end);
  return static_cast<int32_t>(value);
}

// One label for each token.
void read_token_labels(Expected& expected, int64_t end, corpus::HostBatch& host) {
  for (const int64_t label :
       read_integers(expected, "labels", {host.layout.sequences, host.layout.length})) {
    host.labels.push_back(label == kNone ? 0 : label_of(label, end, "labels"));
    host.loss_mask.push_back(label == kNone ? 0.0f : 1.0f);
  }
}

void read_pair_labels(Expected& expected, corpus::HostBatch& host) {
  host.pair_labels.assign(host.tokens.size(), -1);
  size_t row = 0;
  for (const int64_t label :
       read_integers(expected, "next_sentence_label", {host.layout.sequences})) {
    host.pair_labels[row] = label_of(label, 2, "next_sentence_label");
    row += static_cast<size_t>(host.layout.length);
  }
}

// The targets of a row's first two tokens are the indices of the answer's first and last token.
void read_answers(Expected& expected, corpus::HostBatch& host) {
  MG_CHECK(host.layout.length > 1, "input_ids has {} token per sequence; answers need two or more",
           host.layout.length);
  host.targets.assign(host.tokens.size(), 0);
  for (const auto& [name, at] : {std::pair{"start_positions", 0}, {"end_positions", 1}}) {
    size_t row = 0;
    for (const int64_t position : read_integers(expected, name, {host.layout.sequences})) {
      host.targets[row + static_cast<size_t>(at)] = static_cast<double>(position);
      host.loss_mask[row] = 1;
      row += static_cast<size_t>(host.layout.length);
    }
  }
}

}  // namespace

void read_encoder_inputs(Expected& expected, const models::Model& model, ExpectedBatch& batch) {
  corpus::HostBatch& host = batch.host;
  const auto length = static_cast<size_t>(host.layout.length);
  if (expected.contains("token_type_ids"))
    for (const int64_t type :
         read_integers(expected, "token_type_ids", {host.layout.sequences, host.layout.length}))
      host.token_types.push_back(
          label_of(type, std::max<int64_t>(model->facts().token_types, 1), "token_type_ids"));
  if (batch.padding.empty()) return;
  for (size_t i = 0; i < host.tokens.size() && model->facts().position_offset > 0; ++i)
    if (batch.padding[i]) host.positions[i] = -1;
  host.segment_starts.assign(host.tokens.size(), 0);
  host.segment_ends.assign(host.tokens.size(), 0);
  for (size_t row = 0; row < host.tokens.size(); row += length) {
    size_t shown = 0;
    while (shown < length && !batch.padding[row + shown]) ++shown;
    MG_CHECK(shown > 0, "attention_mask hides all tokens of a sequence");
    std::fill_n(host.segment_ends.begin() + static_cast<std::ptrdiff_t>(row), length,
                static_cast<int32_t>(shown) - 1);
  }
}

void read_encoder_labels(Expected& expected, const models::Model& model, ExpectedBatch& batch) {
  corpus::HostBatch& host = batch.host;
  const models::ModelFacts& facts = model->facts();
  if (facts.headless) {
    host.labels.assign(host.tokens.size(), 0);
    host.loss_mask.assign(host.tokens.size(), 1);
    std::iota(host.sample_ids.begin(), host.sample_ids.end(), int64_t{0});
    return;
  }
  if (facts.score_labels == 0) {
    read_token_labels(expected, facts.vocab_size, host);
    if (facts.pair_head) read_pair_labels(expected, host);
    return;
  }
  if (facts.scored == models::ScoredTokens::each_token)
    return read_token_labels(expected, facts.score_labels, host);
  host.labels.assign(host.tokens.size(), 0);
  host.loss_mask.assign(host.tokens.size(), 0);
  if (facts.scored == models::ScoredTokens::span) return read_answers(expected, host);
  for (int64_t row = 0; row < host.layout.sequences; ++row)
    batch.score_rows.push_back(row * host.layout.length);
}

std::shared_ptr<const training::Objective> class_objective(const models::Model& model,
                                                           const corpus::HostBatch& batch) {
  if (!batch.label_sets.empty())
    return std::make_shared<const post_training::MultiLabelObjective>();
  if (model->facts().pair_head) {
    const auto pairs =
        std::ranges::count_if(batch.pair_labels, [](int32_t label) { return label >= 0; });
    return std::make_shared<const post_training::MaskedTextObjective>(
        true, batch.counted() / static_cast<double>(std::max<int64_t>(pairs, 1)));
  }
  if (model->facts().scored != models::ScoredTokens::span) return nullptr;
  const auto length = static_cast<size_t>(batch.layout.length);
  std::array<double, 2> weights{};  // first the number of rows whose answers count
  for (size_t row = 0; row < batch.tokens.size(); row += length)
    for (size_t end = 0; end < weights.size(); ++end)
      if (batch.loss_mask[row] != 0 && batch.targets[row + end] < static_cast<double>(length))
        weights[end] += 1;
  for (double& weight : weights) weight = weight == 0 ? 0 : batch.counted() / weight / 2;
  return std::make_shared<const post_training::AnswerObjective>(weights);
}

void rename_encoder_outputs(const models::Model& model, const ExpectedBatch& batch,
                            TensorMap& values) {
  const models::ModelFacts& facts = model->facts();
  const auto take = [&](const std::string& name) {
    std::vector<double> taken = std::move(values.at(name));
    values.erase(name);
    return taken;
  };
  if (facts.pair_head) {
    values["prediction_logits"] = take("logits");
    const std::vector<double> all = take("pair_logits");
    std::vector<double>& rows = values["seq_relationship_logits"];
    for (int64_t row = 0; row < batch.host.layout.sequences; ++row)
      for (int64_t label = 0; label < 2; ++label)
        rows.push_back(all[static_cast<size_t>(row * batch.host.layout.length * 2 + label)]);
  }
  if (facts.scored == models::ScoredTokens::span) {
    const std::vector<double> both = take("logits");
    for (size_t i = 0; i < both.size(); ++i)
      values[i % 2 == 0 ? "start_logits" : "end_logits"].push_back(both[i]);
  }
}

std::vector<double> without_padding_row(std::vector<double> gradient, std::string_view tensor,
                                        const models::Model& model) {
  const models::ModelFacts& facts = model->facts();
  const bool counts_hidden = facts.scored == models::ScoredTokens::span || facts.headless;
  if (!counts_hidden || facts.score_padding < 0) return gradient;
  const training::WholeModel whole = training::whole_model(model, DType::f32);
  const auto clear = [&](int64_t row) {
    std::fill_n(gradient.begin() + row * facts.hidden_size, facts.hidden_size, 0.0);
  };
  if (tensor == whole.table) clear(facts.score_padding);
  if (tensor == whole.positions && facts.position_offset > 0) clear(facts.position_offset - 1);
  return gradient;
}

}  // namespace megatron::selftest
