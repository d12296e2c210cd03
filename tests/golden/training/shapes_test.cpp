// Combinations of the flags that define a model's shape train, and their loss falls; a resumed run
// refuses another shape.
#include <gtest/gtest.h>

#include <bit>

#include "golden/training/support.h"
#include "models/model_flags.h"
#include "text.h"
#include "training/trainer.h"

namespace megatron::training {
namespace {

settings::TrainSettings base() {
  settings::TrainSettings s;
  s.shape.num_layers = 1;
  s.shape.hidden_size = 32;
  s.shape.num_attention_heads = 2;
  s.shape.vocab_size = 100;
  s.shape.hidden_dropout = s.shape.attention_dropout = 0;
  s.batch.seq_length = 16;
  s.batch.micro_batch_size = 2;
  s.batch.train_iters = 12;
  s.optimizer.lr = 1e-2;
  s.data.mock_data = true;
  return s;
}

// Any three of the six flags occur in all eight combinations.
TEST(Shapes, EveryCombinationOfThreeFlagsLearns) {
  for (int four = 0; four < 16; ++four) {
    const auto parity = [&](int mask) {
      return std::popcount(static_cast<unsigned>(four & mask)) % 2;
    };
    const int bits = four | parity(0b0111) << 4 | parity(0b1110) << 5;
    settings::TrainSettings s = base();
    if (bits & 1) s.shape.position_embedding = models::PositionEmbedding::rope;
    if (bits & 2) s.shape.swiglu = true;
    if (bits & 4) s.shape.normalization = nn::Normalization::rms_norm;
    if (bits & 8) s.shape.add_bias_linear = false;
    if (bits & 16) s.shape.group_query_attention = true;
    if (bits & 32) s.shape.untie = true;
    const TrainResult result = train(s, {.peak = 1e12});
    EXPECT_LT(result.iterations.back().loss, result.iterations.front().loss - 0.2)
        << "flags " << bits;
  }
}

TEST(Shapes, OfAHybridAreRefusedByTheFirstLayerThatDiffers) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = base();
  s.shape.num_layers.reset();
  s.shape.hybrid_layer_pattern = "M-*M";
  s.shape.mamba_head_dim = 8;
  s.shape.mamba_num_groups = 2;
  s.shape.mamba_state_dim = 8;
  s.checkpoint.save = s.checkpoint.load = folder / "run";
  s.checkpoint.exit_interval = 1;
  train(s, {.peak = 1e12});
  const auto expect_error = [&](std::initializer_list<std::string> parts, auto change) {
    settings::TrainSettings other = s;
    change(other.shape);
    const std::string text = testing::error_of([&] { train(other, {.peak = 1e12}); });
    for (const std::string& part : parts) testing::expect_contains(text, {part});
    EXPECT_LT(text.size(), 1000u) << text;
  };
  expect_error({"layers[1]: ", "ffn-hidden-size 128 in the checkpoint and absent now",
                "num-attention-heads absent in the checkpoint and 2 now"},
               [](models::ModelFlags& shape) { shape.hybrid_layer_pattern = "M*-M"; });
  expect_error({"layers[0]: mamba-state-dim 8 in the checkpoint and 16 now"},
               [](models::ModelFlags& shape) { shape.mamba_state_dim = 16; });
  expect_error({"layers a list of 4 in the checkpoint and absent now"},
               [](models::ModelFlags& shape) {
                 shape.hybrid_layer_pattern.reset();
                 shape.num_layers = 4;
               });
}

}  // namespace
}  // namespace megatron::training
