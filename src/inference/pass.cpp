#include "inference/pass.h"

#include <algorithm>

#include "base/error.h"

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

// Tokens, positions, labels and weights of a plan, padded.
nn::Batch make_batch(const models::Stage& stage, Runtime& runtime, const ForwardPassPlan& plan) {
  const auto rows = static_cast<int64_t>(plan.rows.size()), tokens = plan.tokens();
  const auto size = static_cast<size_t>(rows * tokens);
  // Padding has any position that there is: tables may end with the longest text.
  const auto last = static_cast<int32_t>(
      std::min(stage.model()->max_position_embeddings(), std::max<int64_t>(plan.context, 1)) - 1);
  std::vector<int32_t> ids(size), positions(size), labels(size);
  std::vector<double> weights(size);
  for (int64_t b = 0; b < rows; ++b) {
    const PassRow& row = plan.rows[static_cast<size_t>(b)];
    std::ranges::copy(row.tokens, ids.begin() + b * tokens);
    std::ranges::copy(row.labels, labels.begin() + b * tokens);
    std::fill_n(weights.begin() + b * tokens, row.labels.size(), 1.0);
    for (int64_t t = 0; t < tokens; ++t) {
      positions[static_cast<size_t>(b * tokens + t)] =
          std::min(static_cast<int32_t>(row.begin + t), last);
    }
  }
  const DType type = stage.parameters()[0]->parameter.value.dtype();
  nn::Batch batch{.sequences = rows,
                  .length = tokens,
                  .tokens = integers(runtime, ids, "pass.tokens"),
                  .positions = integers(runtime, positions, "pass.positions")};
  if (!plan.has_labels()) return batch;
  batch.labels = integers(runtime, labels, "pass.labels");
  batch.loss_weights = numbers(runtime, weights, kernels::accumulator(type), "pass.weights");
  return batch;
}

}  // namespace

int64_t ForwardPassPlan::tokens() const {
  int64_t longest = 0;
  for (const PassRow& row : rows) longest = std::max(longest, row.count);
  return longest;
}

bool ForwardPassPlan::has_labels() const {
  return std::ranges::any_of(rows, [](const PassRow& row) { return !row.labels.empty(); });
}

Logits::Logits(Tensor logits, Runtime& runtime) : logits_(std::move(logits)), runtime_(runtime) {
  runtime_.stream().synchronize();
  if (!runtime_.device().has_data()) {
    converted_.resize(static_cast<size_t>(logits_.elements()));
    return;
  }
  if (logits_.dtype() != DType::f32 || !logits_.device().is_host()) converted_ = to_floats(logits_);
}

std::span<const float> Logits::row(int64_t index) const {
  const std::span<const float> all =
      converted_.empty() ? std::span<const float>(logits_.span<float>()) : converted_;
  const auto width = static_cast<size_t>(logits_.size(1));
  return all.subspan(static_cast<size_t>(index) * width, width);
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
                         const ForwardPassPlan& plan)
    : stage_(stage),
      runtime_(runtime),
      plan_(plan),
      tape_(runtime, Tape::Mode::infer),
      batch_(make_batch(stage, runtime, plan)) {
  batch_.continuation = state.next(plan.first, batch_.sequences, batch_.length);
  batch_.context = plan.context;
  out_ = models::forward(stage_, tape_, {}, batch_, models::Phase::evaluate);
}

std::vector<double> ForwardPass::losses() {
  const Tensor loss = models::head_loss(stage_, tape_, out_, batch_);
  runtime_.stream().synchronize();
  return to_doubles(loss);
}

Logits ForwardPass::last_logits(std::span<const int64_t> rows) {
  Bundle last;
  for (const auto& [name, var] : out_.all()) {
    const Tensor& all = var.value;
    if (!all.defined()) {
      last.set(name, Var());
      continue;
    }
    const Tensor picked =
        tape_.empty({static_cast<int64_t>(rows.size()), all.size(1)}, all.dtype(), "pass.last");
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t at =
          rows[i] * batch_.length + plan_.rows[static_cast<size_t>(rows[i])].count - 1;
      tape_.kernels().copy(
          {.x = all.slice(0, at, 1), .out = picked.slice(0, static_cast<int64_t>(i), 1)},
          tape_.stream());
    }
    last.set(name, picked);
  }
  return Logits(stage_.loss_logits(tape_, last), runtime_);
}

}  // namespace megatron::inference
