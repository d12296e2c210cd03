#include "inference/embedding.h"

#include <cmath>
#include <numeric>

#include "autograd/tape.h"
#include "base/error.h"
#include "inference/stage_flow.h"

namespace megatron::inference {
namespace {

Tensor on_device(Runtime& runtime, std::span<const int32_t> values) {
  Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), {std::ssize(values)},
                           DType::i32, "embedding.tokens");
  copy_from(t, values, runtime.stream());
  return t;
}

}  // namespace

std::vector<double> sum_of_hidden(const models::Stage& stage, Runtime& runtime,
                                  std::span<const int32_t> tokens, comm::Group* stages,
                                  const Adapter* adapter, Pooling pooling) {
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  const nn::Batch batch{.layout = {.sequences = 1, .length = std::ssize(tokens)},
                        .tokens = on_device(runtime, tokens),
                        .positions = on_device(runtime, positions)};
  RowAdapters adapters;
  adapters.append(adapter, std::ssize(tokens));
  Tape tape(runtime, Tape::Mode::infer);
  if (adapters.any()) tape.add_to_products(&adapters);
  const Bundle in = receive_hidden(stage, runtime, {.tokens = std::ssize(tokens)}, stages);
  const Bundle out = models::forward(stage, tape, in, batch, models::Phase::evaluate);
  send_hidden(stage, tape, out, stages);
  if (!stage.part().head) return {};
  const std::vector<float> hidden = to_floats(stage.final_norm(tape, out).value);
  return pooled(hidden, hidden.size() / tokens.size(), pooling);
}

std::vector<double> pooled(std::span<const float> hidden, size_t width, Pooling pooling) {
  if (pooling == Pooling::first_token) hidden = hidden.first(width);
  if (pooling == Pooling::last_token) hidden = hidden.last(width);
  std::vector<double> sum(width, 0);
  for (size_t i = 0; i < hidden.size(); ++i) sum[i % width] += hidden[i];
  return sum;
}

std::vector<float> embedding_of(std::span<const double> values, size_t tokens, EmbeddingForm form) {
  if (form.unit) return unit_vector(values);
  const double divisor = form.pooling == Pooling::mean ? static_cast<double>(tokens) : 1;
  std::vector<float> embedding;
  for (const double value : values) {
    MG_CHECK(std::isfinite(value), "the embedding of this text is NaN or infinite");
    embedding.push_back(static_cast<float>(value / divisor));
  }
  return embedding;
}

std::vector<float> unit_vector(std::span<const double> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  MG_CHECK(std::isfinite(squares) && squares > 0,
           "the embedding of this text is zero, NaN or infinite");
  std::vector<float> unit;
  for (const double value : values) unit.push_back(static_cast<float>(value / std::sqrt(squares)));
  return unit;
}

}  // namespace megatron::inference
