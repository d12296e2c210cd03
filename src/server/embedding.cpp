#include "server/embedding.h"

#include <cmath>
#include <numeric>

#include "autograd/tape.h"
#include "base/error.h"

namespace megatron::server {
namespace {

Tensor integers(Runtime& runtime, std::span<const int32_t> values) {
  Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), {std::ssize(values)},
                           DType::i32, "embedding.tokens");
  copy_from(t, values, runtime.stream());
  return t;
}

}  // namespace

std::vector<float> embedding(const models::Stage& stage, Runtime& runtime,
                             std::span<const int32_t> tokens) {
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  const nn::Batch batch{.sequences = 1,
                        .length = std::ssize(tokens),
                        .tokens = integers(runtime, tokens),
                        .positions = integers(runtime, positions)};
  Tape tape(runtime, Tape::Mode::infer);
  const Bundle out = models::forward(stage, tape, {}, batch, models::Phase::evaluate);
  const std::vector<float> hidden = to_floats(stage.final_norm(tape, out).value);
  const size_t width = hidden.size() / tokens.size();
  std::vector<double> sum(width, 0);
  for (size_t i = 0; i < hidden.size(); ++i) sum[i % width] += hidden[i];
  double squares = 0;
  for (const double value : sum) squares += value * value;
  MG_CHECK(std::isfinite(squares) && squares > 0, "the embedding of this text is no number");
  std::vector<float> unit;
  for (const double value : sum) unit.push_back(static_cast<float>(value / std::sqrt(squares)));
  return unit;
}

}  // namespace megatron::server
