#include "training/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "base/error.h"
#include "base/philox.h"
#include "training/batch.h"

namespace megatron::training {

void SamplingOptions::check() const {
  MG_CHECK(temperature >= 0 && std::isfinite(temperature),
           "--temperature is {}; it must be 0 or more", temperature);
  MG_CHECK(top_k >= 0, "--top-k is {}; it must be 0 (all tokens) or more", top_k);
}

std::vector<float> next_logits(const models::GptModel& model, Runtime& runtime,
                               const std::vector<int32_t>& tokens) {
  MG_CHECK(!tokens.empty(), "the prompt has no tokens; give some text");
  const models::GptConfig& config = model.config();
  const size_t length =
      std::min(tokens.size(), static_cast<size_t>(config.max_position_embeddings));
  HostBatch host{.sequences = 1, .length = static_cast<int64_t>(length)};
  host.tokens.assign(tokens.end() - static_cast<std::ptrdiff_t>(length), tokens.end());
  host.positions.resize(length);
  std::iota(host.positions.begin(), host.positions.end(), 0);
  host.labels.assign(length, 0);
  host.loss_mask.assign(length, 0);
  host.samples = {0};
  const DType type = model.parameters()[0]->parameter.value.dtype();
  DeviceBatch device_batch(runtime, type);
  const nn::Batch& batch =
      device_batch.fill(host, LossScope::token, config.vocab_size, config.max_position_embeddings);
  Tape tape(runtime, Tape::Mode::infer);
  const Bundle out = models::forward(model, tape, batch, models::Phase::evaluate);
  const int64_t last = batch.length - 1;
  Bundle last_position = {{"hidden", Var(out["hidden"].value.slice(0, last, 1))},
                          {"residual", Var(out["residual"].value.slice(0, last, 1))}};
  return to_floats(model.logits(tape, last_position).value);
}

int32_t sample(const std::vector<float>& all_logits, const SamplingOptions& options,
               int64_t position) {
  std::span<const float> logits = all_logits;
  if (options.vocabulary > 0)
    logits = logits.first(std::min(logits.size(), static_cast<size_t>(options.vocabulary)));
  if (options.temperature == 0)
    return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t kept = options.top_k == 0
                          ? order.size()
                          : std::min(order.size(), static_cast<size_t>(options.top_k));
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](int32_t t) { return logits[static_cast<size_t>(t)]; });
  std::vector<double> cumulative(kept);
  double sum = 0;
  const double top = logits[static_cast<size_t>(order[0])];
  for (size_t i = 0; i < kept; ++i) {
    sum += std::exp((logits[static_cast<size_t>(order[i])] - top) / options.temperature);
    cumulative[i] = sum;
  }
  const double draw =
      RandomStream(options.seed, "generate").uniform(static_cast<uint64_t>(position)) * sum;
  const auto chosen = std::ranges::upper_bound(cumulative, draw) - cumulative.begin();
  return order[std::min(static_cast<size_t>(chosen), kept - 1)];
}

void generate(const models::GptModel& model, Runtime& runtime, std::vector<int32_t>& tokens,
              int64_t max_tokens, const SamplingOptions& options, std::optional<int32_t> end,
              const std::function<void(int32_t)>& on_token) {
  for (int64_t i = 0; i < max_tokens; ++i) {
    const int32_t token =
        sample(next_logits(model, runtime, tokens), options, static_cast<int64_t>(tokens.size()));
    tokens.push_back(token);
    if (on_token) on_token(token);
    if (end && token == *end) return;
  }
}

}  // namespace megatron::training
