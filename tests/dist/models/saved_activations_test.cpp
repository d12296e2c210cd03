// --distribute-saved-activations: each tensor-parallel rank keeps its slice of the inputs of
// recomputed layers.
#include <gtest/gtest.h>

#include "dist/ranks.h"
#include "tiny_gpt.h"

namespace megatron::models {
namespace {

struct SavedResult {
  std::vector<double> losses;
  std::vector<std::vector<double>> gradients;
  int64_t kept = 0;  // bytes held between forward and backward
  bool operator==(const SavedResult& other) const {
    return losses == other.losses && gradients == other.gradients;
  }
};

// Results of every rank.
std::vector<SavedResult> run(int ranks, const testing::TinyConfig& config, DType type,
                             const RecomputeOptions& options, bool in_parts,
                             bool sequence = false) {
  std::vector<SavedResult> results(static_cast<size_t>(ranks));
  testing::each_rank(ranks, DeviceKind::cpu, [&](comm::Group& world, Runtime& runtime) {
    const parallel::TensorParallel tensor = {.group = &world, .sequence = sequence};
    const testing::TinyModel model(config, runtime, type, 77, {0, config.num_layers},
                                   {.tensor = tensor});
    parallel::allocate(model.parameters(), runtime);
    testing::fill_with_noise(model.parameters());
    testing::give_gradients(model.parameters(), runtime);
    const nn::Batch batch = testing::tiny_batch(runtime, config, type);
    const int64_t before = runtime.arena(MemoryClass::activations).in_use();
    SavedResult& result = results[static_cast<size_t>(world.rank())];
    RecomputeOptions recompute = options;
    recompute.tensor = &tensor;
    Tape tape(runtime);
    {
      const Bundle out = forward(model, tape, {}, batch, Phase::train, recompute);
      result.losses = to_doubles(head_loss(model, tape, out, batch));
    }
    result.kept = runtime.arena(MemoryClass::activations).in_use() - before;
    tape.backward(in_parts ? BackwardPart::input : BackwardPart::all);
    if (in_parts) tape.backward(BackwardPart::weight);
    for (const parallel::ParameterSpec* placed : model.parameters())
      result.gradients.push_back(testing::gradient_of(placed->parameter));
  });
  return results;
}

TEST(SavedActivations, SlicesChangeNoBitAndTakeAShareOfTheBytes) {
  for (const bool llama : {false, true}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const int ranks : {2, 4}) {
        testing::TinyConfig config =
            llama ? testing::tiny_llama(4, 4, true) : testing::tiny_gpt2(4);
        config.hidden_size = 64;
        RecomputeOptions options{.granularity = RecomputeOptions::Granularity::full};
        const std::vector<SavedResult> none = run(ranks, config, type, {}, false);
        const std::vector<SavedResult> whole = run(ranks, config, type, options, false);
        options.distribute = true;
        const int64_t input = 16 * config.hidden_size * size_of(type);
        for (const int64_t layers : {1, 2}) {
          options.layers = layers;
          const int64_t stretches = (config.num_layers + layers - 1) / layers;
          for (const bool in_parts : {false, true}) {
            const std::vector<SavedResult> slices = run(ranks, config, type, options, in_parts);
            for (size_t r = 0; r < slices.size(); ++r) {
              EXPECT_EQ(none[r], whole[r]) << r;
              EXPECT_EQ(slices[r], whole[r]) << r;
              EXPECT_EQ(whole[r].kept - slices[r].kept,
                        config.num_layers * input - stretches * input / ranks);
            }
          }
        }
      }
    }
  }
}

TEST(SavedActivations, RecomputeOnDividedTokens) {
  for (const bool llama : {false, true}) {
    const testing::TinyConfig config =
        llama ? testing::tiny_llama(4, 2, true) : testing::tiny_gpt2(4);
    const std::vector<SavedResult> none = run(4, config, DType::f32, {}, false, true);
    const RecomputeOptions all_of[] = {
        {.granularity = RecomputeOptions::Granularity::full, .layers = 2},
        {.granularity = RecomputeOptions::Granularity::selective,
         .modules = {"core_attn", "mlp", "layernorm"}},
        {.granularity = RecomputeOptions::Granularity::selective,
         .modules = {"mlp_act", "layernorm"}}};
    for (const RecomputeOptions& options : all_of) {
      for (const bool in_parts : {false, true}) {
        const std::vector<SavedResult> recomputed =
            run(4, config, DType::f32, options, in_parts, true);
        EXPECT_EQ(recomputed, none);
        for (size_t r = 0; r < none.size(); ++r) EXPECT_LT(recomputed[r].kept, none[r].kept);
      }
    }
  }
}

}  // namespace
}  // namespace megatron::models
