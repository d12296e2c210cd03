// Documents that are packed into one sequence have the losses and, added up, the gradients of each
// alone, with state spaces alone, in turn with attention, beside it and after shared blocks.
#include <gtest/gtest.h>

#include <map>

#include "models/stage.h"
#include "tiny_gpt.h"
#include "unit/models/family_models.h"

namespace megatron::models {
namespace {

// More than a chunk in all; one of a single token, one that begins at a chunk's end.
constexpr int64_t kLengths[] = {5, 1, 57, 1, 12};

struct Results {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> gradients;
};

// rows: the lengths of the documents of each pass, one after another in `tokens`.
void add_results(const Model& model, const std::vector<std::vector<int64_t>>& rows,
                 const std::vector<int32_t>& tokens, Results& results) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const auto stage = model.build(runtime, DType::f64, 0);
  testing::fill_with_noise(stage->parameters());
  testing::give_gradients(stage->parameters(), runtime);
  Arena& arena = runtime.arena(MemoryClass::activations);
  size_t first = 0;
  for (const std::vector<int64_t>& lengths : rows) {
    int64_t length = 0;
    std::vector<int32_t> starts, positions, labels;
    for (const int64_t own : lengths) {
      for (int64_t t = 0; t < own; ++t) {
        starts.push_back(static_cast<int32_t>(length));
        positions.push_back(static_cast<int32_t>(t));
        labels.push_back(tokens[(first + starts.size()) % tokens.size()]);
      }
      length += own;
    }
    const auto made = [&](const std::vector<int32_t>& values) {
      Tensor t = Tensor::empty(arena, {length}, DType::i32, "packed");
      copy_from(t, std::span<const int32_t>(values));
      return t;
    };
    Tensor weights = Tensor::empty(arena, {length}, DType::f64, "packed");
    copy_from(weights,
              std::span<const double>(std::vector<double>(static_cast<size_t>(length), 0.5)));
    nn::Batch batch{.layout = {.sequences = 1, .length = length},
                    .tokens = made({tokens.begin() + static_cast<int64_t>(first),
                                    tokens.begin() + static_cast<int64_t>(first) + length}),
                    .positions = made(positions),
                    .labels = made(labels),
                    .loss_weights = weights};
    if (lengths.size() > 1) batch.segment_starts = made(starts);
    first += static_cast<size_t>(length);
    Tape tape(runtime);
    const Bundle out = forward(*stage, tape, {}, batch, Phase::evaluate);
    for (const double loss : to_doubles(head_loss(*stage, tape, out, batch)))
      results.losses.push_back(loss);
    tape.backward();
  }
  for (const parallel::ParameterSpec* placed : stage->parameters())
    for (const Parameter::Use& use : placed->parameter.uses)
      if (use.started)
        for (const double g : to_doubles(use.grad))
          results.gradients[placed->parameter.name].push_back(g);
}

TEST(PackedDocuments, AreThoseOfEachAlone) {
  std::vector<int32_t> tokens;
  std::vector<std::vector<int64_t>> alone;
  for (const int64_t length : kLengths) {
    for (int64_t t = 0; t < length; ++t)
      tokens.push_back(static_cast<int32_t>((tokens.size() * 37 + 11) % 61));
    alone.push_back({length});
  }
  for (const char* name : {"mamba2", "nemotron_h", "falcon_h1_norm", "bamba", "zamba2"}) {
    const Model model = model_from_config_json(testing::family_config(name));
    Results packed, apart;
    add_results(model, {{std::begin(kLengths), std::end(kLengths)}}, tokens, packed);
    add_results(model, alone, tokens, apart);
    ASSERT_EQ(packed.losses.size(), apart.losses.size());
    for (size_t t = 0; t < packed.losses.size(); ++t)
      EXPECT_NEAR(packed.losses[t], apart.losses[t], 1e-12 * apart.losses[t]) << name << " " << t;
    EXPECT_EQ(packed.gradients.size(), apart.gradients.size());
    for (const auto& [parameter, gradient] : packed.gradients) {
      double largest = 1e-3;
      for (const double g : gradient) largest = std::max(largest, std::abs(g));
      for (size_t i = 0; i < gradient.size(); ++i)
        EXPECT_NEAR(gradient[i], apart.gradients[parameter][i], 1e-11 * largest)
            << name << " " << parameter << " " << i;
    }
  }
}

}  // namespace
}  // namespace megatron::models
