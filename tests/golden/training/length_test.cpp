// A step's memory grows linearly with the length of its sequences, not quadratically.
#include <gtest/gtest.h>

#include "comm/group.h"
#include "golden/training/support.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

struct Memory {
  double activations = 0, scratch = 0;
};

// Memory of a step on meta with `sequences` sequences of `length` tokens.
Memory memory(settings::TrainSettings s, int64_t sequences, int64_t length) {
  s.shape.vocab_size = 32000;  // chunks of logits have a fixed size well below 2048 tokens
  const models::Model definition = models::model_from_flags(s.shape, length);
  Runtime runtime({DeviceKind::meta, 0}, 2);
  const auto group = comm::single();
  TrainedModel model(definition, s.precision.type(), 1, {}, *group, runtime, {});
  model.step.begin(s.optimizer.config);
  corpus::HostBatch batch{.layout = {.sequences = sequences, .length = length}};
  const auto tokens = static_cast<size_t>(sequences * length);
  batch.tokens.assign(tokens, 1);
  batch.labels.assign(tokens, 2);
  batch.loss_mask.assign(tokens, 1);
  for (size_t i = 0; i < tokens; ++i)
    batch.positions.push_back(static_cast<int32_t>(i % static_cast<size_t>(length)));
  for (int64_t i = 0; i < sequences; ++i) batch.sample_ids.push_back(i);
  model.step.run(std::span(&batch, 1), {.learning_rate = 1e-3});
  return {static_cast<double>(runtime.arena(MemoryClass::activations).high_water()),
          static_cast<double>(runtime.arena(MemoryClass::scratch).high_water())};
}

TEST(Length, MemoryIsLinearInTheLengthOfASequence) {
  for (settings::TrainSettings s : {tiny_llama(), tiny_gpt2()}) {
    for (const double dropout : {0.0, 0.1}) {
      s.shape.hidden_dropout = s.shape.attention_dropout = dropout;
      const Memory at2 = memory(s, 1, 2048), at4 = memory(s, 1, 4096), at8 = memory(s, 1, 8192);
      EXPECT_NEAR((at8.activations - at4.activations) / (at4.activations - at2.activations), 2,
                  0.02);
      const double more = at4.scratch - at2.scratch;
      EXPECT_LE(at8.scratch - at4.scratch, 2.04 * more + (1 << 20));
      // The same number of tokens in shorter sequences takes as much memory.
      EXPECT_NEAR(at8.activations / memory(s, 4, 2048).activations, 1, 0.02);
    }
  }
}

}  // namespace
}  // namespace megatron::training
