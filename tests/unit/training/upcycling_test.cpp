// Models whose experts start as copies of a dense model's feed-forward blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tiny_gpt.h"
#include "training/model_source.h"
#include "training/trained_model.h"
#include "training/upcycled_weights.h"
#include "unit/models/family_models.h"

namespace megatron::training {
namespace {

using models::Model;
using models::Phase;
using models::UpcycledModel;
using models::UpcyclingFlags;

UpcyclingFlags four_experts(int64_t granularity) {
  UpcyclingFlags flags{.granularity = granularity};
  flags.moe.num_experts = 4;
  return flags;
}

class Upcycled : public ::testing::Test {
 protected:
  static Model dense(const std::string& family) {
    return models::model_from_directory(testing::family_directory(family));
  }

  std::vector<double> logits(const models::Stage& stage) {
    const testing::TinyConfig sizes{.vocab_size = stage.model()->vocab_size()};
    const nn::Batch batch = testing::tiny_batch(runtime_, sizes, DType::f64);
    Tape tape(runtime_, Tape::Mode::infer);
    return to_doubles(
        stage.logits(tape, models::forward(stage, tape, {}, batch, Phase::evaluate), batch).value);
  }

  std::vector<double> dense_logits(const std::string& family) {
    const checkpoint::ModelDirectory directory(testing::family_directory(family));
    return logits(*load_model(directory, dense(family), runtime_, DType::f64, 0));
  }

  // `look` is called with the parameters.
  std::vector<double> upcycled_logits(
      const std::string& family, const UpcyclingFlags& flags,
      const std::function<void(std::span<const parallel::Shard>)>& look = {}) {
    const Model model = dense(family);
    const UpcycledWeights weights{model->upcycled(flags), whole_model(model, DType::f64)};
    const auto alone = comm::single();
    TrainedModel trained(weights.experts.model, DType::f64, 0, {}, *alone, runtime_, {});
    load_upcycled(checkpoint::ModelDirectory(testing::family_directory(family)), weights,
                  trained.step, 5, runtime_, false);
    if (look) look(trained.shards());
    return logits(trained.parts.whole());
  }

  // Returns the largest difference, relative to the largest logit.
  static double distance(const std::vector<double>& a, const std::vector<double>& b) {
    double difference = 0, largest = 0;
    if (a.size() != b.size()) return INFINITY;
    for (size_t i = 0; i < a.size(); ++i) {
      difference = std::max(difference, std::abs(a[i] - b[i]));
      largest = std::max(largest, std::abs(b[i]));
    }
    return difference / largest;
  }

  Runtime runtime_{{DeviceKind::reference, 0}, 1};
};

// Families with biases, matrices stored [in,out], gate and up in one tensor, squared ReLU,
// post-norms and parallel layers.
TEST_F(Upcycled, FamiliesComputeWhatTheDenseModelDoes) {
  for (const std::string family : {"llama", "llama_tied", "gpt2", "qwen2", "qwen3", "phi3",
                                   "gemma2", "nemotron", "gpt_neox", "falcon", "starcoder2"}) {
    const std::vector<double> expected = dense_logits(family);
    for (const int64_t granularity : {1, 2})
      EXPECT_LE(distance(upcycled_logits(family, four_experts(granularity)), expected), 1e-10)
          << family << ", granularity " << granularity;
  }
}

TEST_F(Upcycled, RoutersWhoseWeightsAddUpToTheSameKeepWhatTheDenseModelComputes) {
  using kernels::RouterScore;
  struct Case {
    const char* name;
    int64_t granularity;
    void (*change)(models::MoeFlags&);
  };
  const std::vector<double> llama = dense_logits("llama"), gpt2 = dense_logits("gpt2");
  for (const Case& c :
       std::vector<Case>{{"fine", 4,
                          [](models::MoeFlags& m) {
                            m.num_experts = 16;
                            m.topk = 8;
                          }},
                         {"every expert", 4, [](models::MoeFlags& m) { m.topk = 4; }},
                         {"layers", 2, [](models::MoeFlags& m) { m.layer_freq = "2"; }},
                         {"sigmoid", 2,
                          [](models::MoeFlags& m) {
                            m.score = RouterScore::sigmoid;
                            m.topk_scaling_factor = 2.5;
                            m.enable_expert_bias = true;
                          }},
                         {"groups", 2,
                          [](models::MoeFlags& m) {
                            m.num_experts = 8;
                            m.num_groups = 2;
                            m.group_topk = 1;
                          }},
                         {"all before", 2, [](models::MoeFlags& m) {
                            m.topk = 4;
                            m.pre_softmax = true;
                          }}}) {
    UpcyclingFlags flags = four_experts(c.granularity);
    c.change(flags.moe);
    EXPECT_LE(distance(upcycled_logits("llama", flags), llama), 1e-10) << c.name;
    EXPECT_LE(distance(upcycled_logits("gpt2", flags), gpt2), 1e-10) << c.name;
  }
}

// The weights of a softmax over all experts, or of one sigmoid, have a sum that depends on the
// token.
TEST_F(Upcycled, RoutersWhoseWeightsDoNotComeNearWhatTheDenseModelComputes) {
  const std::vector<double> expected = dense_logits("llama");
  UpcyclingFlags before = four_experts(2), one = four_experts(1);
  before.moe.pre_softmax = true;
  one.moe.score = kernels::RouterScore::sigmoid;
  one.moe.topk = 1;
  for (const UpcyclingFlags& flags : {before, one}) {
    const double found = distance(upcycled_logits("llama", flags), expected);
    EXPECT_GT(found, 1e-6);
    EXPECT_LT(found, 0.1);
    EXPECT_NE(dense("llama")->upcycled(flags).summary.find(
                  "approximately the same function as the dense one"),
              std::string::npos);
  }
}

TEST_F(Upcycled, RouterRowsAreDrawnForEachCopyAndTheSameForItsParts) {
  UpcyclingFlags flags = four_experts(2);
  int routers = 0;
  upcycled_logits("llama", flags, [&](std::span<const parallel::Shard> shards) {
    for (const parallel::Shard& shard : shards) {
      if (!shard.placed->parameter.name.ends_with("router.weight")) continue;
      ++routers;
      const std::vector<double> values = to_doubles(shard.value);
      const auto row = [&](int64_t e) {
        const auto begin = values.begin() + e * 48;
        return std::vector<double>(begin, begin + 48);
      };
      ASSERT_EQ(values.size(), size_t{4 * 48});
      EXPECT_EQ(row(0), row(1));
      EXPECT_EQ(row(2), row(3));
      EXPECT_NE(row(0), row(2));
      EXPECT_NE(row(0)[0], 0);
    }
  });
  EXPECT_EQ(routers, 3);
}

TEST_F(Upcycled, ModelsHaveTheFamilyThatHoldsThem) {
  EXPECT_EQ(dense("llama")->upcycled(four_experts(2)).model->family(), "mixtral");
  EXPECT_EQ(dense("qwen3")->upcycled(four_experts(1)).model->family(), "qwen3_moe");
  EXPECT_EQ(dense("gpt2")->upcycled(four_experts(1)).model->family(), "megatron");
  UpcyclingFlags named = four_experts(1);
  named.family = "megatron";
  EXPECT_EQ(dense("llama")->upcycled(named).model->family(), "megatron");
}

TEST_F(Upcycled, WhatCannotBeDividedIsRefused) {
  struct Case {
    std::string family;
    int64_t granularity;
    void (*change)(UpcyclingFlags&);
    std::vector<const char*> parts;
  };
  const auto as_it_is = [](UpcyclingFlags&) {};
  for (const Case& c : std::vector<Case>{
           {"llama", 0, as_it_is, {"--moe-upcycling-granularity is 0", "positive"}},
           {"llama", 3, as_it_is, {"--moe-upcycling-granularity 3", "88", "layer 0", "divisors"}},
           {"llama", 8, as_it_is, {"--num-experts 4", "--moe-upcycling-granularity 8"}},
           {"llama", 4, as_it_is, {"--moe-router-topk 2", "--moe-upcycling-granularity 4"}},
           {"llama",
            2,
            [](UpcyclingFlags& f) { f.moe.num_groups = f.moe.group_topk = 4; },
            {"1 experts in a group", "--moe-router-num-groups 4", "--moe-upcycling-granularity 2"}},
           {"llama",
            2,
            [](UpcyclingFlags& f) { f.moe.ffn_hidden_size = 88; },
            {"--moe-ffn-hidden-size is 88", "parts of 44", "leave it out"}},
           {"llama", 1, [](UpcyclingFlags& f) { f.moe.num_experts.reset(); }, {"--num-experts"}},
           {"llama", 1, [](UpcyclingFlags& f) { f.moe.latent_size = 8; }, {"--moe-latent-size"}},
           {"llama",
            1,
            [](UpcyclingFlags& f) { f.moe.shared_ffn = 8; },
            {"--moe-shared-expert-intermediate-size"}},
           {"llama",
            1,
            [](UpcyclingFlags& f) { f.moe.apply_probs_on_input = true; },
            {"--moe-apply-probs-on-input"}},
           {"llama",
            1,
            [](UpcyclingFlags& f) { f.moe.layer_freq = "[0]*3"; },
            {"--moe-layer-freq [0]*3", "none of the 3 layers"}},
           {"llama", 1, [](UpcyclingFlags& f) { f.moe.topk = 5; }, {"--moe-router-topk is 5"}},
           {"llama",
            1,
            [](UpcyclingFlags& f) { f.family = "gpt2"; },
            {"--model-family gpt2 cannot represent"}},
           {"mixtral",
            1,
            as_it_is,
            {"layer 0 of this model already has experts", "drop the flag"}}}) {
    UpcyclingFlags flags = four_experts(c.granularity);
    c.change(flags);
    try {
      dense(c.family)->upcycled(flags);
      ADD_FAILURE() << c.parts[0];
    } catch (const Error& error) {
      const std::string text = error.what();
      for (const char* part : c.parts)
        EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    }
  }
}

}  // namespace
}  // namespace megatron::training
