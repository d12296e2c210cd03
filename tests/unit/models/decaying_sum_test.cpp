// The made-up mixer of docs/adding.md, compiled as it is written there, in fp64 against its plain
// loops and their differences.
#include "models/decoder/mixers/decaying_sum.h"

#include <gtest/gtest.h>

#include "base/philox.h"
#include "tiny_gpt.h"

namespace megatron::models {
namespace {

using SumMixer = LayerPart<nn::DecayingSumConfig>;

class DecayingSum : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 6, kHidden = 4;

  DecayingSum() {
    value.hidden_size = kHidden;
    nn::Builder builder(runtime, DType::f64,
                        [](const std::string& name, const Shape& shape) {
                          parallel::Placement placement;
                          placement.tensors = {{.name = name, .global = shape}};
                          return placement;
                        },
                        {});
    mixer = SumMixer::build(builder, "layers.0.attention", config,
                            {.model = value, .positions = positions});
    parameters = builder.take();
    parallel::ParameterSpec* const all[] = {parameters[0].get()};
    parallel::allocate(all, runtime);
    testing::give_gradients(all, runtime);
    weight = drawn(kHidden * kHidden, "weight");
    copy_from(parameters[0]->parameter.value, std::span<const double>(weight));
  }
  static std::vector<double> drawn(int64_t count, const char* name) {
    const RandomStream stream(3, name);
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(stream.normal(static_cast<uint64_t>(i)));
    return values;
  }
  // sum_{t,h} factors[t,h] y[t,h].
  double plain_sum(const std::vector<double>& x) const {
    const FamilyTensors map{.layer_prefix = "layers.*.", .layer = {{"attention", "attention"}}};
    const PlainTensors weights = {{"layers.0.attention.sum.weight", weight}};
    PlainRows rows;
    for (int64_t t = 0; t < kTokens; ++t)
      rows.emplace_back(x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
    const PlainParts parts(value, map, weights);
    double sum = 0;
    size_t i = 0;
    for (const auto& row : SumMixer::plain(parts, rows, "layers.0.attention", config, {}))
      for (const double y : row) sum += factors[i++] * y;
    return sum;
  }

  Runtime runtime{{DeviceKind::reference, 0}, 1};
  const nn::DecayingSumConfig config{.decay = 0.6};
  DecoderValue value;
  PositionTables positions;
  std::unique_ptr<Sublayer> mixer;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> parameters;
  std::vector<double> weight, factors = drawn(kTokens * kHidden, "factors");
};

TEST_F(DecayingSum, IsItsPlainImplementationWithItsGradient) {
  const std::vector<double> x = drawn(kTokens * kHidden, "x");
  Arena& arena = runtime.arena(MemoryClass::activations);
  Tensor in = Tensor::empty(arena, {kTokens, kHidden}, DType::f64, "x"),
         dy = Tensor::empty(arena, {kTokens, kHidden}, DType::f64, "dy");
  copy_from(in, std::span<const double>(x));
  copy_from(dy, std::span<const double>(factors));
  Tape tape(runtime);
  const Var leaf = tape.leaf(in);
  const nn::Batch batch{.layout = {.sequences = 1, .length = kTokens}};
  const Var y = (*mixer)(tape, leaf, batch, true);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += factors[i] * to_doubles(y.value)[i];
  EXPECT_NEAR(sum, plain_sum(x), 1e-12);
  tape.set_gradient(y, dy);
  tape.backward();
  const std::vector<double> gradient = to_doubles(tape.gradient(leaf));
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<double> more = x, less = x;
    more[i] += 1;
    less[i] -= 1;  // y is linear in x
    EXPECT_NEAR(gradient[i], (plain_sum(more) - plain_sum(less)) / 2, 1e-12) << i;
  }
  EXPECT_EQ(SumMixer::parameters(config, {}, kHidden), parameters[0]->parameter.value.elements());
}

}  // namespace
}  // namespace megatron::models
