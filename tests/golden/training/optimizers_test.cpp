// Whole runs with every optimizer: on several ranks as on one, stopped and resumed, with its flags.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/tolerances.h"
#include "checkpoint/checkpoint_directory.h"
#include "golden/training/support.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

using optim::Method;

struct Variant {
  std::string name;
  std::function<void(optim::OptimizerConfig&)> set;
  bool bf16 = false;  // resumes in bf16 on two ranks
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

std::vector<Variant> variants() {
  return {{"lion", [](auto& c) { c.method = Method::lion; }, true},
          {"muon", [](auto& c) { c.method = Method::muon; }},
          {"muon_low_lion",
           [](auto& c) {
             c.method = Method::muon;
             c.muon_scalar = Method::lion;
             c.muon.precision = optim::ProductPrecision::low;
             c.muon.nesterov = true;
             c.muon.split_qkv = false;
           },
           true},
          {"adam_fp8_moments", [](auto& c) { c.exp_avg_type = c.exp_avg_sq_type = DType::u8; }},
          {"adam_bf16_second", [](auto& c) { c.exp_avg_sq_type = DType::bf16; }, true}};
}

settings::TrainSettings tiny(const Variant& variant) {
  settings::TrainSettings s = tiny_llama();
  variant.set(s.optimizer.config);
  if (variant.name == "lion") s.optimizer.lr = 5e-4;
  return s;
}

settings::TrainSettings saving(settings::TrainSettings s, const std::string& folder) {
  s.checkpoint.save = s.checkpoint.load = folder;
  s.batch.train_iters = 6;
  return s;
}

std::string error_of(const settings::TrainSettings& s) {
  try {
    train(s);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_parts(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) EXPECT_NE(text.find(part), text.npos) << text;
}

// One test for each optimizer.
class OptimizerRun : public ::testing::TestWithParam<Variant> {};

TEST_P(OptimizerRun, OfAnyNumberOfRanksIsThatOfOne) {
  const Variant& variant = GetParam();
  // If moments or products are rounded to 16 or 8 bits, another order of sums can give the
  // neighbouring value.
  const bool rounded = variant.name != "lion";
  settings::TrainSettings s = tiny(variant);
  s.batch.global_batch_size = 12;
  s.batch.micro_batch_size = 2;
  if (variant.name == "muon") s.optimizer.config.muon.precision = optim::ProductPrecision::high;
  const auto expected = train_losses(s);
  EXPECT_LT(expected.back(), expected.front());
  for (const int ranks : {2, 3}) {
    s.runtime.ranks = ranks;
    EXPECT_LE(distance(train_losses(s), expected),
              rounded && variant.name != "muon" ? 1e-3 : tolerance::kLayoutFp32)
        << "on " << ranks;
  }
}

TEST_P(OptimizerRun, ThatIsResumedIsTheWholeRun) {
  const Variant& variant = GetParam();
  const TemporaryDirectory folder;
  settings::TrainSettings s = tiny(variant);
  s.precision.bf16 = variant.bf16;
  s.runtime.ranks = variant.bf16 ? 2 : 1;
  const auto expected = train_losses(saving(s, folder / "whole"));
  settings::TrainSettings parts = saving(s, folder / "parts");
  parts.checkpoint.exit_interval = 3;
  train(parts, {.peak = 1e12});
  parts.checkpoint.exit_interval.reset();
  EXPECT_TRUE(same_bits(train_losses(parts), {expected.begin() + 3, expected.end()}));
  for (const auto file : {"model.safetensors", "optimizer-00001-of-00001.safetensors"}) {
    const std::string path = std::string("/iter_0000006/") + file;
    EXPECT_TRUE(read_file(folder / ("whole" + path)) == read_file(folder / ("parts" + path)))
        << file;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerRun, ::testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.name; });

TEST(Optimizers, TwoThreadsGiveTheSameBits) {
  for (const Variant& variant : variants()) {
    settings::TrainSettings s = tiny(variant);
    s.precision.bf16 = true;
    const auto expected = train_losses(s);
    s.runtime.threads = 2;
    EXPECT_TRUE(same_bits(train_losses(s), expected)) << variant.name;
  }
}

class OptimizerResume : public ::testing::Test {
 protected:
  // A run that stops after three of six steps.
  settings::TrainSettings stopped(const Variant& variant) {
    settings::TrainSettings s = saving(tiny(variant), folder_ / variant.name);
    s.checkpoint.exit_interval = 3;
    train(s);
    s.checkpoint.exit_interval.reset();
    return s;
  }
  TemporaryDirectory folder_;
};

TEST_F(OptimizerResume, AnotherMethodIsRefused) {
  settings::TrainSettings s = stopped(variants()[1]);
  for (const Method method : {Method::adam, Method::lion, Method::sgd}) {
    s.optimizer.config.method = method;
    expect_parts(error_of(s), {"--optimizer muon", optim::name(method), "--no-load-optim"});
  }
  s.optimizer.config.method = Method::muon;
  s.optimizer.config.muon_scalar = Method::lion;
  expect_parts(error_of(s), {"--muon-scalar-optimizer adam", "it is lion", "--no-load-optim"});
  s.optimizer.config.muon_scalar = Method::adam;
  s.optimizer.config.exp_avg_type = DType::bf16;
  expect_parts(error_of(s), {"--exp-avg-dtype fp32", "it is bf16", "--no-load-optim"});
  s.checkpoint.load_optimizer = false;
  EXPECT_EQ(train(s).iterations.size(), 3u);
}

TEST_F(OptimizerResume, OtherBetasAreToldAndUsed) {
  const settings::TrainSettings s = stopped({"adam", [](auto&) {}});
  settings::TrainSettings other = s;
  other.checkpoint.save.reset();
  other.optimizer.config.adam_beta2 = 0.5;
  ::testing::internal::CaptureStderr();
  const auto changed = train_losses(other);
  expect_parts(::testing::internal::GetCapturedStderr(), {"changed: adam-beta2 from 0.999 to 0.5"});
  ::testing::internal::CaptureStderr();
  other.optimizer.config = s.optimizer.config;
  other.optimizer.config.sgd_momentum = 0.5;  // Adam does not use it
  EXPECT_NE(train_losses(other), changed);
  EXPECT_EQ(::testing::internal::GetCapturedStderr().find("changed:"), std::string::npos);
}

TEST_F(OptimizerResume, SchedulesAreSavedWhole) {
  Variant plain{"wsd", [](auto&) {}};
  settings::TrainSettings s = saving(tiny(plain), folder_ / "wsd");
  s.optimizer.lr_decay_style = optim::DecayStyle::wsd;
  s.optimizer.lr_wsd_decay_iters = 2;
  s.optimizer.lr_wsd_decay_style = optim::WsdStyle::cosine;
  s.optimizer.decoupled_lr = 1e-3;
  const auto expected = train_losses(s);
  s.checkpoint.save = s.checkpoint.load = folder_ / "parts";
  s.checkpoint.exit_interval = 3;
  train(s);
  s.checkpoint.exit_interval.reset();
  settings::TrainSettings other = s;
  other.optimizer.lr_wsd_decay_iters = 3;
  other.optimizer.lr_wsd_decay_style = optim::WsdStyle::linear;
  other.optimizer.decoupled_lr.reset();
  expect_parts(error_of(other), {"lr-wsd-decay-samples 16 in the checkpoint and 24 now",
                                 "lr-wsd-decay-style cosine in the checkpoint and linear now",
                                 "decoupled-lr 0.001 in the checkpoint and absent now",
                                 "--use-checkpoint-opt-param-scheduler"});
  other.checkpoint.save.reset();
  other.checkpoint.use_checkpoint_scheduler = true;
  EXPECT_TRUE(same_bits(train_losses(other), {expected.begin() + 3, expected.end()}));
}

TEST(Optimizers, DecoupledRateMovesTheEmbedding) {
  settings::TrainSettings s = tiny_llama();
  const auto plain = train_losses(s);
  s.optimizer.decoupled_lr = s.optimizer.lr;
  EXPECT_TRUE(same_bits(train_losses(s), plain));
  s.optimizer.decoupled_lr = 1e-4;
  EXPECT_NE(train_losses(s), plain);
  s.optimizer.decoupled_lr.reset();
  s.optimizer.decoupled_min_lr = 1e-5;
  expect_parts(error_of(s), {"--decoupled-min-lr 1e-05 needs --decoupled-lr"});
}

TEST(Optimizers, SamplesCountLikeIterations) {
  settings::TrainSettings s = tiny_llama();
  s.optimizer.lr_decay_style = optim::DecayStyle::wsd;
  s.optimizer.lr_decay_iters = 4;
  s.optimizer.lr_wsd_decay_iters = 2;
  s.optimizer.lr_warmup_iters = 1;
  const auto expected = train_losses(s);
  settings::TrainSettings samples = tiny_llama();
  samples.batch.train_iters.reset();
  samples.batch.train_samples = 40;
  samples.optimizer.lr_decay_style = optim::DecayStyle::wsd;
  samples.optimizer.lr_decay_samples = 32;
  samples.optimizer.lr_wsd_decay_samples = 16;
  samples.optimizer.lr_warmup_samples = 8;
  EXPECT_TRUE(same_bits(train_losses(samples), expected));

  const auto mixed = [](settings::TrainSettings given, auto&& change) {
    change(given.optimizer);
    return error_of(given);
  };
  expect_parts(mixed(s, [](auto& o) { o.lr_decay_samples = 8; }),
               {"--lr-decay-samples needs --train-samples", "--lr-decay-iters"});
  expect_parts(mixed(s, [](auto& o) { o.lr_wsd_decay_iters.reset(); }),
               {"WSD needs --lr-wsd-decay-iters"});
  expect_parts(mixed(s, [](auto& o) { o.lr_wsd_decay_iters = 5; }),
               {"--lr-wsd-decay-iters is 5", "[1, 4]"});
}

// Two or three bytes less for each parameter and moment.
TEST(Optimizers, NarrowMomentsTakeLess) {
  const auto bytes = [](DType first, DType second) {
    settings::TrainSettings s = tiny_llama();
    s.optimizer.config.exp_avg_type = first;
    s.optimizer.config.exp_avg_sq_type = second;
    const models::Model definition = models::model_from_flags(s.shape, *s.batch.seq_length);
    Runtime runtime({DeviceKind::meta, 0}, 1);
    const auto group = comm::single();
    TrainedModel model(definition, DType::f32, 1, {}, *group, runtime, {});
    model.step.begin(s.optimizer.config);
    int64_t sum = 0;
    for (const auto& state : model.step.optimizer().states()) sum += state.value.bytes();
    return std::pair{sum, runtime.arena(MemoryClass::optimizer).high_water()};
  };
  const auto wide = bytes(DType::f32, DType::f32), one = bytes(DType::f32, DType::bf16),
             both = bytes(DType::bf16, DType::bf16), codes = bytes(DType::u8, DType::u8);
  EXPECT_EQ(one.first, wide.first / 4 * 3);
  EXPECT_EQ(both.first, wide.first / 2);
  EXPECT_EQ(codes.first, wide.first / 4);
  EXPECT_LT(both.second, one.second);
  EXPECT_LT(one.second, wide.second);
}

}  // namespace
}  // namespace megatron::training
