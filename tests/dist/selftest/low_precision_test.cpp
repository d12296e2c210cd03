// Quantised products in layouts whose blocks and scales are those of one rank
// (docs/low_precision.md): in fp64, their gradients are equal.
#include <gtest/gtest.h>

#include "base/tolerances.h"
#include "dist/selftest/adapted_runs.h"
#include "golden/selftest/support.h"
#include "selftest/experiment.h"
#include "selftest/passing_group.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest::low_precision_test {
namespace {

constexpr int64_t kSequences = 4, kMicroBatch = 2;

struct Recipe {
  LowPrecisionRecipe recipe;
  int64_t block;  // multiple of every size of a rank's matrices, and of a micro-batch's tokens
  int64_t layers;
};

void PrintTo(const Recipe& recipe, std::ostream* out) { *out << name(recipe.recipe); }

LowPrecisionFormats formats_of(LowPrecisionRecipe recipe) {
  if (recipe != LowPrecisionRecipe::nvfp4) return {.recipe = recipe};
  return {.recipe = recipe, .forward = LowFormat::e2m1, .gradient = LowFormat::e2m1};
}

// Two heads of one block each, so that two ranks have whole blocks.
models::Model model_of(const Recipe& r, bool quantizes = true) {
  models::ModelFlags flags = tiny_models()[0].flags;
  flags.num_layers = r.layers;
  flags.hidden_size = flags.ffn_hidden_size = 2 * r.block;
  flags.max_position_embeddings = 64;
  const bool output = r.recipe == LowPrecisionRecipe::mxfp8;
  if (output) flags.vocab_size = 2 * r.block;
  const models::Model model = models::model_from_flags(flags, 0);
  if (!quantizes) return model;
  return model->with(
      {.low_precision = LowPrecisionLayers{.formats = formats_of(r.recipe), .output = output}});
}

double worst(const TensorMap& found, const TensorMap& expected) {
  double most = 0;
  for (const auto& [name, error] : metrics(found, expected)) most = std::max(most, error);
  return most;
}

class LowPrecisionLayouts : public ::testing::TestWithParam<Recipe> {
 protected:
  TensorMap gradients(const Layout& layout, const Environment& environment = {},
                      DeviceKind device = DeviceKind::reference, bool quantizes = true) const {
    const DType type = device == DeviceKind::cpu ? DType::bf16 : DType::f64;
    return Experiment(model_of(GetParam(), quantizes), device, type, type,
                      settings::LossScope::token, kSequences,
                      std::max<int64_t>(16, GetParam().block / kMicroBatch), environment)
        .gradients(layout);
  }
};

models::RecomputeOptions whole_layers() {
  return {.granularity = models::RecomputeOptions::Granularity::full};
}

TEST_P(LowPrecisionLayouts, EqualOneRank) {
  const TensorMap expected = gradients({.micro_batch = kMicroBatch});
  for (const Layout& layout :
       {Layout{.tp = 2, .micro_batch = kMicroBatch},
        Layout{.tp = 2, .sequence = true, .recompute = whole_layers(), .micro_batch = kMicroBatch},
        Layout{.pipeline = {.stages = 2}, .micro_batch = kMicroBatch},
        Layout{.dp = 2,
               .sharding = parallel::Sharding::parameters,
               .recompute = whole_layers(),
               .micro_batch = kMicroBatch}})
    EXPECT_LT(worst(gradients(layout), expected), tolerance::kLayoutFp64) << layout.str();
  const double change =
      worst(gradients({.micro_batch = kMicroBatch}, {}, DeviceKind::reference, false), expected);
  EXPECT_GT(change, 1e-4);
}

TEST_P(LowPrecisionLayouts, RecomputeChangesNoBit) {
  const auto run = [&](const models::RecomputeOptions& recompute) {
    return gradients({.recompute = recompute, .micro_batch = kMicroBatch}, {}, DeviceKind::cpu);
  };
  EXPECT_EQ(run(whole_layers()), run({}));
}

INSTANTIATE_TEST_SUITE_P(Recipes, LowPrecisionLayouts,
                         ::testing::Values(Recipe{LowPrecisionRecipe::tensorwise, 16, 2},
                                           Recipe{LowPrecisionRecipe::blockwise, 128, 1},
                                           Recipe{LowPrecisionRecipe::mxfp8, 32, 2},
                                           Recipe{LowPrecisionRecipe::nvfp4, 16, 2}));

// Other layers: grouped heads, state spaces, latent attention, encoders.
TEST(LowPrecisionModels, EqualOneRank) {
  std::vector<models::Model> all = {tiny_models()[1].model(), tiny_hybrid().model(),
                                    tiny_encoders()[0].model(), tiny_t5().model()};
  models::ModelFlags latent = tiny_models()[1].flags;
  latent.multi_latent_attention = true;
  latent.q_lora_rank = 20;
  latent.kv_lora_rank = 12;
  latent.qk_head_dim = 4;
  latent.qk_pos_emb_head_dim = 2;
  latent.v_head_dim = 3;
  latent.num_query_groups = 1;
  latent.group_query_attention = latent.latent_yarn = false;
  latent.kv_channels.reset();
  all.push_back(models::model_from_flags(latent, 64));
  for (const models::Model& model : all) {
    const auto gradients = [&](const Layout& layout) {
      const auto quantized =
          model->with({.low_precision = LowPrecisionLayers{
                           .formats = {.recipe = LowPrecisionRecipe::tensorwise}}});
      return Experiment(quantized, DeviceKind::reference, DType::f64, DType::f64,
                        settings::LossScope::token, kSequences, 16, {})
          .gradients(layout);
    };
    const TensorMap expected = gradients({.micro_batch = 4});
    for (const Layout& layout : {Layout{.tp = 2, .sequence = true, .micro_batch = 4},
                                 Layout{.pipeline = {.stages = 2}, .micro_batch = 4}}) {
      EXPECT_LT(worst(gradients(layout), expected), tolerance::kLayoutFp64)
          << model->family() << " " << layout.str();
    }
  }
}

// Gradients in an encoder, and of what a decoder reads of it, are rounded by the random numbers of
// the encoder's tokens, in backward as well.
TEST(LowPrecisionEncoderDecoder, EqualsOneRank) {
  TinyModel t5 = tiny_t5();
  constexpr std::string_view kWidth = R"("d_ff": 48)";  // 64 has blocks of 16 for two ranks
  t5.config.replace(t5.config.find(kWidth), kWidth.size(), R"("d_ff": 64)");
  const models::Model model = t5.model()->with(
      {.low_precision = LowPrecisionLayers{.formats = formats_of(LowPrecisionRecipe::nvfp4)}});
  const auto gradients = [&](const Layout& layout) {
    return Experiment(model, DeviceKind::reference, DType::f64, DType::f64,
                      settings::LossScope::token, kSequences, 16, {})
        .gradients(layout);
  };
  const TensorMap expected = gradients({.micro_batch = 4});
  for (const Layout& layout :
       {Layout{.tp = 2, .sequence = true, .micro_batch = 4},
        Layout{.pipeline = {.stages = 2}, .recompute = whole_layers(), .micro_batch = 4}})
    EXPECT_LT(worst(gradients(layout), expected), tolerance::kLayoutFp64) << layout.str();
}

// Experts on ranks that divide them, or their widths.
class LowPrecisionExperts : public ::testing::TestWithParam<Recipe> {};

// width: of the experts; 0: two blocks.
TensorMap gradients_of_experts(const Recipe& recipe, const Layout& layout, bool quantizes = true,
                               const Environment& environment = {}, int64_t width = 0) {
  models::ModelFlags flags = tiny_models()[0].flags;
  flags.num_layers = 1;
  flags.hidden_size = flags.ffn_hidden_size = 2 * recipe.block;
  flags.max_position_embeddings = 64;
  flags.moe.num_experts = 4;
  flags.moe.topk = 2;
  flags.moe.ffn_hidden_size = width > 0 ? width : 2 * recipe.block;
  models::Model model = models::model_from_flags(flags, 0);
  if (quantizes)
    model =
        model->with({.low_precision = LowPrecisionLayers{.formats = formats_of(recipe.recipe)}});
  return Experiment(model, DeviceKind::reference, DType::f64, DType::f64,
                    settings::LossScope::token, kSequences, 16, environment)
      .gradients(layout);
}

TEST_P(LowPrecisionExperts, EqualOneRank) {
  const auto gradients = [](const Layout& layout, bool quantizes) {
    return gradients_of_experts(GetParam(), layout, quantizes);
  };
  const TensorMap expected = gradients({.micro_batch = 4}, true);
  for (const Layout& layout :
       {Layout{.tp = 2, .micro_batch = 4},
        Layout{.tp = 2, .ep = 2, .etp = 1, .sequence = true, .micro_batch = 4},
        Layout{.tp = 2,
               .ep = 2,
               .etp = 1,
               .sequence = true,
               .dispatcher = parallel::TokenDispatcher::alltoall,
               .micro_batch = 4}})
    EXPECT_LT(worst(gradients(layout, true), expected), tolerance::kLayoutFp64) << layout.str();
  const TensorMap plain = gradients({.micro_batch = 4}, false);
  int experts = 0;
  for (const auto& [name, error] : metrics(plain, expected)) {
    if (name.find("experts") == name.npos || name.find("weight") == name.npos) continue;
    EXPECT_GT(error, 1e-5) << name << " is not quantised";
    ++experts;
  }
  EXPECT_GT(experts, 0);
}

// Experts whose rows are no whole blocks do not share one, so that blocks are the same on a rank
// that has other experts.
TEST_P(LowPrecisionExperts, OfNoWholeBlocksEqualOneRank) {
  const int64_t width = GetParam().block * 5 / 4;
  const Layout one{.micro_batch = 4},
      two{.tp = 2, .ep = 2, .etp = 1, .sequence = true, .micro_batch = 4};
  EXPECT_LT(worst(gradients_of_experts(GetParam(), two, true, {}, width),
                  gradients_of_experts(GetParam(), one, true, {}, width)),
            tolerance::kLayoutFp64);
}

INSTANTIATE_TEST_SUITE_P(Recipes, LowPrecisionExperts,
                         ::testing::Values(Recipe{LowPrecisionRecipe::tensorwise, 16, 1},
                                           Recipe{LowPrecisionRecipe::blockwise, 128, 1},
                                           Recipe{LowPrecisionRecipe::mxfp8, 32, 1},
                                           Recipe{LowPrecisionRecipe::nvfp4, 16, 1}));

// The largest elements of a step are those of all its tokens, so that not even micro-batches change
// scales.
class DelayedScales : public ::testing::TestWithParam<bool> {
 protected:
  // After steps of SGD, whose scales follow from earlier ones.
  TensorMap trained(const Layout& layout, const Environment& environment = {},
                    DeviceKind device = DeviceKind::reference) const {
    const models::Model model = model_of({LowPrecisionRecipe::delayed, 16, 2}, false)
                                    ->with({.low_precision = LowPrecisionLayers{
                                                .formats = {.recipe = LowPrecisionRecipe::delayed,
                                                            .margin = 1,
                                                            .history = GetParam() ? 2 : 1,
                                                            .most_of_history = GetParam()}}});
    const DType type = device == DeviceKind::cpu ? DType::bf16 : DType::f64;
    return Experiment(model, device, type, type, settings::LossScope::token, kSequences, 16,
                      environment)
        .run(layout, {optim::Method::sgd})
        .parameters;
  }
};

TEST_P(DelayedScales, EqualOneRank) {
  const TensorMap expected = trained({.micro_batch = 4});
  for (const Layout& layout :
       {Layout{.micro_batch = 1}, Layout{.tp = 2, .micro_batch = 4},
        Layout{.tp = 2, .sequence = true, .micro_batch = 2}, Layout{.cp = 2, .micro_batch = 4},
        Layout{.pipeline = {.stages = 2}, .micro_batch = 2},
        Layout{.dp = 2, .sharding = parallel::Sharding::parameters, .micro_batch = 1}}) {
    EXPECT_LT(worst(trained(layout), expected), tolerance::kLayoutFp64) << layout.str();
  }
}

void sum_of_amax(const kernels::AmaxArgs& args, Stream& stream) {
  const float before = args.out.beta == 0 ? 0 : *args.out.out.data<float>();
  kernels::AmaxArgs own = args;
  own.out.beta = 0;
  kernels::table(DeviceKind::cpu).amax(own, stream);
  *args.out.out.data<float>() += before;
}

TEST_P(DelayedScales, RecomputeChangesNoBit) {
  const auto run = [&](const models::RecomputeOptions& recompute, const Environment& environment) {
    return trained({.recompute = recompute, .micro_batch = kMicroBatch}, environment,
                   DeviceKind::cpu);
  };
  EXPECT_EQ(run(whole_layers(), {}), run({}, {}));
  // A planted fault: what is recomputed is observed twice.
  static const kernels::Table table = [] {
    kernels::Table changed = kernels::table(DeviceKind::cpu);
    changed.amax = sum_of_amax;
    return changed;
  }();
  Environment twice;
  twice.table = [](DeviceKind) { return &table; };
  EXPECT_NE(run(whole_layers(), twice), run({}, twice));
}

INSTANTIATE_TEST_SUITE_P(Histories, DelayedScales, ::testing::Bool());

// Adapters of a quantised model: scales of frozen weights, and of the matrices that magnitudes
// make.
TEST(LowPrecisionAdapters, EqualOneRank) {
  struct Case {
    LowPrecisionRecipe recipe;
    bool magnitudes;
    int64_t experts;
  };
  const Layout tensor{.tp = 2, .sequence = true, .recompute = whole_layers(), .micro_batch = 4};
  for (const Case& c :
       {Case{LowPrecisionRecipe::delayed, false, 0}, Case{LowPrecisionRecipe::tensorwise, true, 0},
        Case{LowPrecisionRecipe::tensorwise, false, 4}}) {
    models::ModelFlags flags = tiny_models()[0].flags;
    flags.num_layers = c.recipe == LowPrecisionRecipe::delayed ? 2 : 1;
    if (c.experts > 0) {
      flags.moe.num_experts = c.experts;
      flags.moe.topk = 2;
      flags.moe.ffn_hidden_size = 12;
    }
    models::LoraConfig lora{
        .rank = 3, .alpha = 5, .weight_decomposed = c.magnitudes, .init = models::LoraInit::random};
    lora.all_linear = true;
    const models::Model plain = adapted_model(flags, lora),
                        model = plain->with(
                            {.low_precision = LowPrecisionLayers{.formats = {.recipe = c.recipe}}});
    std::vector<Layout> layouts = {tensor};
    if (c.recipe == LowPrecisionRecipe::delayed)
      layouts = {tensor,
                 {.pipeline = {.stages = 2}, .micro_batch = 4},
                 {.dp = 2, .sharding = parallel::Sharding::parameters, .micro_batch = 4}};
    if (c.experts > 0) layouts = {{.tp = 2, .ep = 2, .etp = 1, .sequence = true, .micro_batch = 4}};
    const Outcome expected = run_adapted(model, {.micro_batch = 4});
    expect_results_in(layouts, model, expected);
    EXPECT_GT(worst(run_adapted(plain, {.micro_batch = 4}).gradients, expected.gradients), 1e-4);
  }
}

class OwnMaximum final : public PassingGroup<OwnMaximum> {
 public:
  using PassingGroup::PassingGroup;
  comm::Work make(comm::GroupCall call, Stream& stream) override {
    return call.name == "amax" ? comm::Work() : PassingGroup::make(std::move(call), stream);
  }
};

// A planted fault: each rank's scale is that of its own part.
TEST(LowPrecisionFaults, ScalesOfOneRankAreFound) {
  const Recipe recipe{LowPrecisionRecipe::tensorwise, 16, 1};
  Environment changed;
  changed.wrap = [](comm::Group& group) { return std::make_unique<OwnMaximum>(group); };
  const auto gradients = [&](const Environment& environment) {
    return Experiment(model_of(recipe), DeviceKind::reference, DType::f64, DType::f64,
                      settings::LossScope::token, kSequences, 16, environment)
        .gradients({.tp = 2, .micro_batch = kMicroBatch});
  };
  EXPECT_GT(worst(gradients(changed), gradients({})), 1e-4);
}

void round_with_own_channels(const kernels::QuantizeArgs& args, Stream& stream) {
  kernels::QuantizeArgs changed = args;
  changed.channels = {};
  kernels::table(DeviceKind::reference).quantize(changed, stream);
}

// A planted fault: ranks draw the same random numbers for different columns.
TEST(LowPrecisionFaults, EqualChancesOnRanksAreFound) {
  static const kernels::Table table = [] {
    kernels::Table changed = kernels::table(DeviceKind::reference);
    changed.quantize = round_with_own_channels;
    return changed;
  }();
  Environment changed;
  changed.table = [](DeviceKind) { return &table; };
  const auto gradients = [&](const Environment& environment) {
    return Experiment(model_of({LowPrecisionRecipe::nvfp4, 16, 1}), DeviceKind::reference,
                      DType::f64, DType::f64, settings::LossScope::token, kSequences, 16,
                      environment)
        .gradients({.tp = 2, .micro_batch = kMicroBatch});
  };
  EXPECT_GT(worst(gradients(changed), gradients({})), 1e-4);
}

void samples_by_row(const kernels::TokensOfRowsArgs& args, Stream& stream) {
  kernels::table(DeviceKind::reference).tokens_of_rows(args, stream);
  for (int64_t r = 0; args.index.defined() && r < args.sample_ids.size(0); ++r)
    args.sample_ids.data<int64_t>()[r] = r;
}

// A planted fault: the numbers of an expert's rows depend on where these are on their rank.
TEST(LowPrecisionFaults, ChancesOfRowsAreFound) {
  static const kernels::Table table = [] {
    kernels::Table changed = kernels::table(DeviceKind::reference);
    changed.tokens_of_rows = samples_by_row;
    return changed;
  }();
  Environment changed;
  changed.table = [](DeviceKind) { return &table; };
  const Recipe fp4{LowPrecisionRecipe::nvfp4, 16, 1};
  const Layout experts{.tp = 2, .ep = 2, .etp = 1, .sequence = true, .micro_batch = 4};
  EXPECT_GT(worst(gradients_of_experts(fp4, experts, true, changed),
                  gradients_of_experts(fp4, {.micro_batch = 4}, true, changed)),
            1e-4);
}

}  // namespace
}  // namespace megatron::selftest::low_precision_test
