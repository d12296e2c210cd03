// The program's built-in checks of CUDA's kernels, on the CUDA plugin compiled for the CPU
// (tests/cuda_shim). Runs a few of each kind; tools/gpu_check runs all of them on a GPU.
#include "selftest/selftest.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/tolerances.h"
#include "ops/elementwise.h"
#include "ops/gradient_check.h"
#include "selftest/experiment.h"

namespace megatron::selftest {
namespace {

struct Ran {
  Summary summary;
  std::string text;
};

Ran run_here(SelftestOptions options) {
  options.device = DeviceKind::cuda;
  Ran ran;
  ran.summary = run(options, [&](std::string_view line) { ran.text += line; });
  return ran;
}

class CudaChecks : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaChecks, Pass) {
  const Ran ran = run_here({.filter = GetParam()});
  EXPECT_TRUE(ran.summary.failed.empty()) << ran.text;
  EXPECT_GE(ran.summary.passed.size(), 1u);
  EXPECT_EQ(ran.text.find("CUDA shim on the CPU; "), 0u) << ran.text;
}

INSTANTIATE_TEST_SUITE_P(Some, CudaChecks,
                         ::testing::Values("=kernels/fill", "=kernels/sum_of_squares",
                                           "=kernels/add_rms_norm", "gradients/",
                                           "=model/llama fp32", "=model/gpt2 fp32"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

TEST(CudaSelftest, NamesWhatItWouldRun) {
  const auto lines = [](const Ran& ran) { return std::ranges::count(ran.text, '\n'); };
  const Ran all = run_here({.list = true}), real = run_here({.real = true, .list = true});
  EXPECT_EQ(lines(all), static_cast<int64_t>(checks(1, DeviceKind::cuda).size()));
  EXPECT_NE(all.text.find("kernels/gemm\n"), std::string::npos) << all.text;
  EXPECT_NE(all.text.find("bits/gpt2\n"), std::string::npos) << all.text;
  EXPECT_EQ(all.text.find(" fp64"), std::string::npos) << "the reference is no GPU's";
  EXPECT_NE(real.text.find("real/gemm\n"), std::string::npos) << real.text;
  EXPECT_EQ(run_here({.filter = "=kernels/add", .list = true}).text, "kernels/add\n");
  EXPECT_GT(lines(run_here({.filter = "kernels/add", .list = true})), 1);
  const Ran rows = run_here({.layouts = 2, .list = true}),
            first = run_here({.layouts = 2, .part = 0, .parts = 9, .list = true});
  EXPECT_EQ(lines(rows), static_cast<int64_t>(LayoutMatrix(2).rows().size()));
  EXPECT_EQ(lines(first), lines(rows) / 9);
}

TEST(CudaSelftest, RefusesWhatItDoesNotHave) {
  EXPECT_THROW(run_here({.fault = "doubled-gradient"}), Error);
  EXPECT_THROW(run_here({.real = true, .layouts = 2}), Error);
  EXPECT_THROW(run_here({.filter = "=kernels/"}), Error);
  EXPECT_THROW(run({.real = true}, [](std::string_view) {}), Error);
}

// A gradient that is twice the correct one.
TEST(CudaGradients, AreComparedWithTheReference) {
  Runtime runtime({DeviceKind::cuda}, 1);
  ops::GradientCase c = ops::gradient_cases().front();
  EXPECT_LT(ops::gradient_distance(c, DType::f32, runtime).worst, 1e-6);
  c.run = [right = c.run](Tape& tape, std::span<const Var> inputs,
                          std::span<const Weight> weights) {
    ops::GradientCase::Result result = right(tape, inputs, weights);
    Var& out = result.outputs[0];
    if (out.value.dtype() == DType::f32) out = ops::add(tape, out, out);
    return result;
  };
  EXPECT_NEAR(ops::gradient_distance(c, DType::f32, runtime).worst, 1, 1e-3);
}

// --- Ranks as threads that share one GPU, as in the layout matrix.

TensorMap gradients_of(const Layout& layout, const Environment& environment, int64_t length = 8) {
  const TinyModel model = tiny_models().at(1);
  const Experiment experiment(model.model(), DeviceKind::cuda, DType::f32, DType::f32,
                              settings::LossScope::token, 4, length, environment);
  return experiment.gradients(layout);
}

double worst_metric(const TensorMap& tensors, const TensorMap& expected) {
  double worst = 0;
  for (const auto& [name, error] : metrics(tensors, expected)) worst = std::max(worst, error);
  return worst;
}

const Layout kOne{.micro_batch = 4};
Layout divided() {
  return {.tp = 2, .dp = 2, .sequence = true, .pipeline = {.stages = 2}, .micro_batch = 1};
}

TEST(CudaLayouts, GiveTheGradientsOfOneRank) {
  const Environment environment;
  const TensorMap one = gradients_of(kOne, environment);
  EXPECT_GT(one.size(), 10u);
  EXPECT_LE(worst_metric(gradients_of(divided(), environment), one), tolerance::kLayoutFp32);
}

// The products of chunks have other shapes, for which cuBLASLt may add in another order: gradients
// are those of whole blocks but for rounding, and all else keeps the bits of the same chunks.
TEST(CudaLayouts, KeepTheBitsOfTheSameChunksOfFeedForwardBlocks) {
  const Environment environment;
  const Layout chunks{.pipeline = {.stages = 2}, .mlp_chunks = 3, .micro_batch = 4};
  const auto gradients = [&](const Layout& layout) {
    return gradients_of(layout, environment, 16);
  };
  const TensorMap divided = gradients(chunks);
  EXPECT_EQ(divided, gradients(plain_layout(chunks, DeviceKind::cuda)));
  const double error = worst_metric(divided, gradients(kOne));
  EXPECT_LE(error, tolerance::kLayoutFp32);
  EXPECT_GT(error, 0) << "the stand-in adds in one order for every shape";
}

TEST(CudaLayouts, NoticeAFault) {
  const Environment environment = fault_named("swapped-stages").environment();
  EXPECT_GT(worst_metric(gradients_of(divided(), environment), gradients_of(kOne, {})), 0.1);
}

}  // namespace
}  // namespace megatron::selftest
