// States of fixed size in slots: the made-up mixer of docs/adding.md, compiled as it is written
// there, alone and between layers with attention.
#include "golden/inference/bits.h"
#include "golden/inference/shared_requests.h"
#include "unit/models/summing_model.h"

namespace megatron::testing {
namespace {

using inference::Engine;

models::ModelFlags summing_shape() {
  return llama_shape(2, 32, 2, 1, kSharedVocabulary, kSharedPositions);
}

TEST(Slots, GiveTheBitsOfOnePass) {
  for (const DType type : {DType::f32, DType::bf16}) {
    RandomModel m(summing_model(summing_shape()), type);
    expect_bits_of_one_pass(m, {1, 150}, {1, 3}, {1, 7, 32, 100});
  }
}

TEST(Slots, GiveEachRequestWhatItGetsAlone) {
  RandomModel m(summing_model(summing_shape()), DType::f32);
  expect_results_of_each_alone(m, 150);
}

TEST(Slots, GiveEachRequestWhatItGetsAloneWithoutAttentionToo) {
  RandomModel m(summing_model(summing_shape(), false), DType::bf16);
  expect_results_of_each_alone(m, 150, false);
}

TEST(Slots, ARequestThatGaveUpItsSlotContinuesFromASnapshot) {
  RandomModel m(summing_model(summing_shape(), false), DType::f32);
  expect_texts_continue_from_snapshots(m, 40, 40, 32);
}

// A prefix ends where a snapshot is. The one of the last block is the last to be given up.
TEST(Slots, KeepSnapshotsAtTheEndsOfBlocks) {
  RandomModel m(summing_model(summing_shape(), false), DType::f32);
  Engine e(m.model, m.runtime, {.max_requests = 2, .max_tokens = 64, .block_size = 32});
  const int64_t slots = 2 * (2 * 2 + 2);
  EXPECT_EQ(e.cache_use().blocks, slots);
  EXPECT_EQ(e.cache_use().bytes, slots * 2 * 32 * 4) << "two layers of 32 f32";
  const auto run = [&](const Tokens& prompt) {
    std::map<inference::RequestId, inference::Generation> results;
    const inference::RequestId id = e.submit({.prompt = prompt, .max_tokens = 3, .logprobs = -1});
    while (!e.idle()) take(e.step(), results);
    return numbers_of(results[id]);
  };
  const Tokens prompt = random_tokens(200, kSharedVocabulary, 1);
  const std::vector<double> first = run(prompt);
  EXPECT_EQ(e.cached_tokens(prompt), 192);
  EXPECT_EQ(e.cached_tokens(Tokens(prompt.begin(), prompt.begin() + 100)), 96);
  EXPECT_EQ(run(prompt), first);
  EXPECT_EQ(e.statistics().cached_tokens, 192);
  run(random_tokens(220, kSharedVocabulary, 2));  // takes six free slots and the first snapshot
  run(random_tokens(150, kSharedVocabulary, 3));  // takes a free slot and the next four
  EXPECT_EQ(e.cached_tokens(Tokens(prompt.begin(), prompt.begin() + 100)), 0);
  EXPECT_EQ(e.cached_tokens(prompt), 192);
  EXPECT_EQ(run(prompt), first);
  EXPECT_EQ(e.cache_use().used, 0);
}

// A plan of an engine is the engine on meta.
TEST(Slots, TakeTheSameMemoryOnMeta) {
  const inference::EngineOptions options{.max_requests = 3, .block_size = 32};
  RandomModel m(summing_model(summing_shape()), DType::bf16);
  Runtime meta({DeviceKind::meta, 0}, 1);
  const auto planned = m.model.model().build(meta, DType::bf16, 1);
  const auto taken = [&](const models::Stage& stage, Runtime& runtime) {
    const int64_t before = runtime.arena(MemoryClass::activations).in_use();
    Engine e(stage, runtime, options);
    EXPECT_GE(runtime.arena(MemoryClass::activations).in_use() - before, e.cache_use().bytes);
    e.submit({.prompt = {1, 2, 3}, .max_tokens = 2});
    while (!e.idle()) e.step();
    return std::pair(e.cache_use().bytes, e.cache_use().blocks);
  };
  EXPECT_EQ(taken(*planned, meta), taken(m.model, m.runtime));
}

}  // namespace
}  // namespace megatron::testing
