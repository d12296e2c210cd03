// A step allocates nothing after the first, and a run on meta finds the memory that a real run
// uses.
#include <gtest/gtest.h>

#include <array>

#include "golden/training/support.h"
#include "training/trained_model.h"
#include "unit/models/family_models.h"

namespace megatron::training {
namespace {

using Marks = std::array<int64_t, kMemoryClasses>;

Marks marks(Runtime& runtime) {
  Marks m{};
  for (int i = 0; i < kMemoryClasses; ++i)
    m[static_cast<size_t>(i)] = runtime.arena(static_cast<MemoryClass>(i)).high_water();
  return m;
}

struct Case {
  std::string name;
  bool llama = true, bf16 = false, recompute = false;
  double dropout = 0;
  bool confined = false;
  optim::Method method = optim::Method::adam;
  bool fp16 = false;  // only the first step overflows
  DType moments = DType::f32;
  models::Model model = {};  // used instead of the shape of the flags
  std::vector<std::string> freeze = {};
};

std::vector<Case> cases() {
  return {{"llama_fp32"},
          {"llama_bf16", true, true},
          {"llama_recompute", true, false, true},
          {"gpt2_fp32_dropout", false, false, false, 0.1},
          {"gpt2_bf16_recompute_dropout", false, true, true, 0.1},
          {"llama_recompute_confined", true, false, true, 0, true},
          {"llama_bf16_lion", true, true, false, 0, false, optim::Method::lion},
          {"llama_bf16_muon", true, true, false, 0, false, optim::Method::muon},
          {.name = "llama_sgd", .method = optim::Method::sgd},
          {.name = "llama_fp16", .fp16 = true},
          {.name = "gpt2_fp16_recompute_dropout",
           .llama = false,
           .recompute = true,
           .dropout = 0.1,
           .fp16 = true},
          {.name = "llama_fp16_muon", .method = optim::Method::muon, .fp16 = true},
          {.name = "llama_fp8_moments", .bf16 = true, .moments = DType::u8},
          {.name = "llama_bf16_frozen_layer",
           .bf16 = true,
           .freeze = {"model.embed_tokens.weight", "model.layers.0.*", "*norm*"}},
          {.name = "gpt2_recompute_frozen_matrices",
           .llama = false,
           .recompute = true,
           .freeze = {"*.weight"}}};
}

corpus::HostBatch batch(int64_t sequences, int64_t length, int64_t vocabulary, int32_t first,
                        bool confined) {
  corpus::HostBatch b{.layout = {.sequences = sequences, .length = length}};
  for (int64_t i = 0; i < sequences * length; ++i) {
    b.tokens.push_back(static_cast<int32_t>((first + i * 7) % vocabulary));
    b.labels.push_back(static_cast<int32_t>((first + i * 7 + 7) % vocabulary));
    b.positions.push_back(static_cast<int32_t>(i % length));
    b.loss_mask.push_back(1);
    if (confined) b.segment_starts.push_back(static_cast<int32_t>(i % length / 5 * 5));
  }
  for (int64_t i = 0; i < sequences; ++i) b.sample_ids.push_back(first + i);
  return b;
}

// High-water marks after the first and the last of four steps with three micro-batches each.
std::array<Marks, 2> run(const Case& c, DeviceKind device, int threads) {
  settings::TrainSettings s = c.llama ? tiny_llama() : tiny_gpt2();
  s.shape.hidden_dropout = s.shape.attention_dropout = c.dropout;
  s.precision.bf16 = c.bf16;
  s.precision.fp16 = c.fp16;
  s.precision.loss_scaling.initial = 0x1p40;
  s.optimizer.config.method = c.method;
  s.optimizer.config.exp_avg_type = s.optimizer.config.exp_avg_sq_type = c.moments;
  const models::Model definition =
      c.model ? c.model : models::model_from_flags(s.shape, *s.batch.seq_length);
  const int64_t vocabulary = definition->vocab_size();
  Runtime runtime({device, 0}, threads);
  const auto group = comm::single();
  TrainedModel model(definition, s.precision.type(), 1, {}, *group, runtime,
                     {.recompute = c.recompute ? recomputed_layers() : models::RecomputeOptions(),
                      .loss_scale = s.precision.loss_scale(),
                      .freeze = c.freeze});
  model.initialize(1);
  model.step.begin(s.optimizer.config);
  std::array<Marks, 2> found;
  for (int i = 0; i < 4; ++i) {
    const std::vector<corpus::HostBatch> batches = {batch(2, 32, vocabulary, i, c.confined),
                                                    batch(2, 32, vocabulary, i + 1, c.confined),
                                                    batch(2, 32, vocabulary, i + 2, c.confined)};
    const StepReport report =
        model.step.run(batches, {.learning_rate = 1e-3, .weight_decay = 0.01});
    EXPECT_EQ(report.updated(), !c.fp16 || i > 0 || device == DeviceKind::meta) << c.name;
    if (i > 0) continue;
    found[0] = marks(runtime);
    if (c.fp16) model.step.loss_scale().resume({.value = 1024});
  }
  found[1] = marks(runtime);
  return found;
}

TEST(Memory, NoArenaGrowsAfterTheFirstStep) {
  for (const Case& c : cases()) {
    for (const int threads : {1, 2}) {
      const auto [first, last] = run(c, DeviceKind::cpu, threads);
      for (int i = 0; i < kMemoryClasses; ++i) {
        EXPECT_EQ(first[static_cast<size_t>(i)], last[static_cast<size_t>(i)])
            << c.name << ": " << name(static_cast<MemoryClass>(i));
      }
    }
  }
}

// Checks all memory classes, because meta kernels request the scratch of the planned device's
// kernels.
void expect_marks_of_meta(const Case& c, int threads) {
  const auto real = run(c, DeviceKind::cpu, threads), meta = run(c, DeviceKind::meta, threads);
  for (int i = 0; i < kMemoryClasses; ++i)
    EXPECT_EQ(real[1][static_cast<size_t>(i)], meta[1][static_cast<size_t>(i)])
        << c.name << ", " << threads << " threads: " << name(static_cast<MemoryClass>(i));
  EXPECT_GT(meta[1][static_cast<size_t>(MemoryClass::activations)], 0);
  EXPECT_GT(meta[1][static_cast<size_t>(MemoryClass::scratch)], 0);
}

TEST(Memory, AMetaRunFindsTheMarksOfARealOne) {
  for (const Case& c : cases())
    for (const int threads : {1, 2, 5}) expect_marks_of_meta(c, threads);
}

TEST(Memory, AMetaRunFindsTheMarksOfEveryFamily) {
  for (const auto& [name, model] : testing::family_models()) {
    for (const bool bf16 : {false, true}) {
      for (const bool recompute : {false, true}) {
        const Case c{.name = name, .bf16 = bf16, .recompute = recompute, .model = model};
        expect_marks_of_meta(c, recompute ? 1 : 2);
      }
    }
  }
}

TEST(Memory, RecomputeNeedsLess) {
  const auto activations = static_cast<size_t>(MemoryClass::activations);
  Case kept{"kept"}, recomputed{"recomputed"};
  recomputed.recompute = true;
  EXPECT_LT(run(recomputed, DeviceKind::meta, 1)[1][activations],
            run(kept, DeviceKind::meta, 1)[1][activations]);
}

}  // namespace
}  // namespace megatron::training
