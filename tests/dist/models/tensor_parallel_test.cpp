// Compares tensor-parallel models with the same model on one rank: the loss of every token and the
// gradient of every element of every parameter.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "base/error.h"
#include "base/tolerances.h"
#include "comm/async.h"
#include "dist/ranks.h"
#include "tiny_gpt.h"

namespace megatron::models {
namespace {

using parallel::ParameterSpec;
using testing::Canonical;

struct Result {
  std::vector<double> losses, logits;
  Canonical gradients;
};

struct Run {
  testing::TinyConfig config;
  DType type = DType::f64;
  DeviceKind device = DeviceKind::reference;
  int ranks = 1;
  bool sequence = false, async = false;
};

// Sums gradients of partial parameters, as DataParallel does.
void sum_partial(std::span<ParameterSpec* const> parameters, comm::Group& group, Runtime& runtime) {
  for (ParameterSpec* placed : parameters) {
    if (!placed->partial) continue;
    for (Parameter::Use& use : placed->parameter.uses) {
      group.all_reduce(use.grad, comm::Reduce::sum, runtime.stream(), "test.partial")
          .wait(runtime.stream());
    }
  }
}

Result run(const Run& r) {
  Result result;
  std::mutex mutex;
  testing::each_rank(r.ranks, r.device, [&](comm::Group& world, Runtime& runtime) {
    const std::unique_ptr<comm::Group> async =
        r.async ? comm::async(world.split(0, world.rank(), world.size())) : nullptr;
    const parallel::TensorParallel tensor = {
        .group = &world, .async = async.get(), .sequence = r.sequence};
    const testing::TinyModel model(r.config, runtime, r.type, 77, {0, r.config.num_layers},
                                   {.tensor = tensor});
    parallel::allocate(model.parameters(), runtime);
    testing::fill_with_noise(model.parameters());
    testing::give_gradients(model.parameters(), runtime);
    const nn::Batch batch = testing::tiny_batch(runtime, r.config, r.type);
    Tape tape(runtime);
    const Bundle out = forward(model, tape, {}, batch, Phase::train);
    const Tensor loss = head_loss(model, tape, out, batch);
    tape.backward();
    sum_partial(model.parameters(), world, runtime);

    Tape inference(runtime, Tape::Mode::infer);
    const Bundle evaluated = forward(model, inference, {}, batch, Phase::evaluate);
    const Tensor logits = model.logits(inference, evaluated, batch).value;
    const Tensor loss_logits = model.loss_logits(inference, evaluated);

    const std::lock_guard lock(mutex);
    EXPECT_EQ(to_doubles(loss_logits).size(), to_doubles(logits).size());
    for (const auto& [mine, all] :
         {std::pair{to_doubles(loss), &result.losses}, {to_doubles(loss_logits), &result.logits}}) {
      if (all->empty()) *all = mine;
      EXPECT_EQ(mine, *all);  // every rank has the same bits
    }
    for (const ParameterSpec* placed : model.parameters())
      result.gradients.add(*placed, testing::gradient_of(placed->parameter));
  });
  EXPECT_TRUE(result.gradients.complete());
  return result;
}

double distance(const std::vector<double>& a, const std::vector<double>& b, double rms) {
  double difference = 0, reference = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    reference += b[i] * b[i];
  }
  return tolerance::tensor_metric(std::sqrt(difference), std::sqrt(reference), rms,
                                  static_cast<int64_t>(b.size()));
}

double rms_of(const Canonical& all) {
  double squares = 0, count = 0;
  for (const auto& [name, values] : all.tensors()) {
    for (const double v : values) squares += v * v;
    count += static_cast<double>(values.size());
  }
  return std::sqrt(squares / count);
}

void expect_near(const Result& found, const Result& expected, double limit) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  ASSERT_EQ(found.logits.size(), expected.logits.size());
  EXPECT_LE(distance(found.losses, expected.losses, 0), limit);
  EXPECT_LE(distance(found.logits, expected.logits, 0), limit);
  ASSERT_EQ(found.gradients.tensors().size(), expected.gradients.tensors().size());
  const double rms = rms_of(expected.gradients);
  for (const auto& [name, values] : expected.gradients.tensors()) {
    const std::vector<double>& mine = found.gradients.tensors().at(name);
    ASSERT_EQ(mine.size(), values.size()) << name;
    EXPECT_LE(distance(mine, values, rms), limit) << name;
  }
}

void expect_any_layout_gives_the_same(const testing::TinyConfig& config,
                                      const std::vector<int>& degrees) {
  for (const bool exact : {true, false}) {
    Run r{.config = config};
    if (!exact) {
      r.type = DType::f32;
      r.device = DeviceKind::cpu;
    }
    const Result one = run(r);
    for (const int ranks : degrees) {
      for (const bool sequence : {false, true}) {
        SCOPED_TRACE(
            fmt::format("{} ranks, {}, sequence {}", ranks, exact ? "f64" : "f32", sequence));
        r.ranks = ranks;
        r.sequence = sequence;
        r.async = false;
        const Result result = run(r);
        expect_near(result, one, exact ? tolerance::kLayoutFp64 : tolerance::kLayoutFp32);
        r.async = true;
        const Result overlapped = run(r);
        EXPECT_EQ(overlapped.losses, result.losses);
        EXPECT_EQ(overlapped.gradients.tensors(), result.gradients.tensors());
      }
    }
  }
}

TEST(TensorParallelModel, Gpt2WithDropout) {
  expect_any_layout_gives_the_same(testing::tiny_gpt2(), {2, 4});
}

TEST(TensorParallelModel, LlamaWithGroupedHeads) {
  expect_any_layout_gives_the_same(testing::tiny_llama(4, 2, true), {2, 4});
}

TEST(TensorParallelModel, LlamaTiedWithBiases) {
  expect_any_layout_gives_the_same(testing::tiny_llama(8, 4, false), {2, 4});
}

TEST(TensorParallelModel, OneKeyHeadAndDropout) {
  testing::TinyConfig config = testing::tiny_llama(4, 1, false);
  config.hidden_dropout = config.attention_dropout = 0.25;
  config.kv_channels = 8;
  expect_any_layout_gives_the_same(config, {2, 4});
}

// The first three ranks hold rows of the table, and the last holds none.
TEST(TensorParallelModel, FewerTokensThanTheRanksCouldHold) {
  for (const bool untied : {false, true}) {
    testing::TinyConfig config = testing::tiny_llama(4, 4, untied);
    config.vocab_size = 5;
    expect_any_layout_gives_the_same(config, {4});
  }
}

// A group of one rank does not change the model's results.
TEST(TensorParallelModel, AGroupOfOneChangesNoBit) {
  for (const testing::TinyConfig& config :
       {testing::tiny_gpt2(), testing::tiny_llama(4, 2, true)}) {
    const Result result = run({.config = config, .type = DType::f32, .device = DeviceKind::cpu});
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    testing::TinyModel model(config, runtime, DType::f32, 77, {0, config.num_layers}, {});
    parallel::allocate(model.parameters(), runtime);
    testing::fill_with_noise(model.parameters());
    testing::give_gradients(model.parameters(), runtime);
    const nn::Batch batch = testing::tiny_batch(runtime, config, DType::f32);
    Tape tape(runtime);
    const Bundle out = forward(model, tape, {}, batch, Phase::train);
    const Tensor loss = head_loss(model, tape, out, batch);
    tape.backward();
    EXPECT_EQ(to_doubles(loss), result.losses);
    Canonical gradients;
    for (const ParameterSpec* placed : model.parameters())
      gradients.add(*placed, testing::gradient_of(placed->parameter));
    EXPECT_EQ(gradients.tensors(), result.gradients.tensors());
  }
}

}  // namespace
}  // namespace megatron::models
