// The output and exit codes of `megatron verify` and `megatron selftest`.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "cli/command.h"
#include "golden/selftest/support.h"
#include "text.h"

namespace megatron::cli {
namespace {

using testing::has;

using megatron::testing::TemporaryDirectory;
using megatron::testing::vectors;

struct Result {
  int code;
  std::string out;
};

Result run_captured(const Arguments& arguments) {
  ::testing::internal::CaptureStdout();
  const int code = run(arguments);
  std::fflush(stdout);
  return {code, ::testing::internal::GetCapturedStdout()};
}

TEST(VerifyCommand, TellsModelsFromTrajectoriesAndPrintsEachKind) {
  const Result r = run_captured(
      {"verify", vectors("hf/llama_tied"), vectors("train/gpt2_mask"), "--device", "cpu"});
  EXPECT_EQ(r.code, 0) << r.out;
  for (const char* part :
       {"logits              1 compared, worst error", "gradients          50 compared",
        "hidden states       5 compared", "greedy tokens       1 compared",
        "grad_norm          10 compared", "exp_avg_sq         10 compared", "2 passed, 0 failed"}) {
    EXPECT_TRUE(has(r.out, part)) << part << "\n" << r.out;
  }
}

TEST(VerifyCommand, DividesTokensOfModelsAndTrajectories) {
  const Result r =
      run_captured({"verify", vectors("hf/gpt2"), vectors("train/llama_adamw"), "--device", "cpu",
                    "--tensor-model-parallel-size", "2", "--sequence-parallel"});
  EXPECT_EQ(r.code, 0) << r.out;
  EXPECT_TRUE(has(r.out, "f32, tensor parallel 2, sequence parallel: passed")) << r.out;
  EXPECT_TRUE(has(r.out, "2 passed, 0 failed")) << r.out;
  EXPECT_NE(run_captured({"verify", vectors("hf/gpt2"), "--sequence-parallel"}).code, 0);
}

TEST(VerifyCommand, SuggestsFlagsThatItHas) {
  for (const Arguments& flags :
       {Arguments{"--data-parallel-size", "2", "--expert-model-parallel-size", "3"},
        Arguments{"--tensor-model-parallel-size", "64", "--pipeline-model-parallel-size", "64"},
        Arguments{"--threads", "600", "--data-parallel-size", "2"}}) {
    Arguments arguments = {"verify", vectors("hf/gpt2")};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(run_captured(arguments).code, 2);
    const std::string error = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(has(error, flags[0]) && !has(error, "--ranks")) << error;
  }
}

TEST(VerifyCommand, FailsWithOneWeightChanged) {
  const TemporaryDirectory directory;
  const std::string model = directory / "gpt2";
  std::filesystem::copy(vectors("hf/gpt2"), model);
  megatron::testing::change_tensors(model + "/model.safetensors", [](auto& values) {
    values.at("transformer.h.2.attn.c_attn.weight")[70] += 1e-3f;
  });
  const Result r = run_captured({"verify", model});
  EXPECT_EQ(r.code, 1) << r.out;
  EXPECT_TRUE(has(r.out, "0 passed, 2 failed")) << r.out;
}

TEST(VerifyCommand, GoesOnBehindADirectoryThatItCannotVerify) {
  const TemporaryDirectory directory;
  const std::string nothing = directory / "nothing";
  const Result r = run_captured({"verify", nothing, vectors("train/llama_sgd"), "--device", "cpu"});
  EXPECT_EQ(r.code, 2) << r.out;
  EXPECT_TRUE(has(r.out, nothing + ": not verified: ")) << r.out;
  EXPECT_TRUE(has(r.out, "1 passed, 0 failed, 1 not verified")) << r.out;
}

TEST(VerifyCommand, RewritesOnceAndNotOverAnything) {
  const TemporaryDirectory directory;
  const Arguments arguments = {
      "verify", vectors("hf/llama_sharded"), "--rewrite", directory / "out", "--device", "cpu"};
  const Result r = run_captured(arguments);
  EXPECT_EQ(r.code, 0) << r.out;
  EXPECT_TRUE(has(r.out, "tensor bytes       30 compared")) << r.out;
  EXPECT_TRUE(std::filesystem::exists(directory / "out/model.safetensors.index.json"));
  EXPECT_EQ(run_captured(arguments).code, 2);
}

TEST(VerifyCommand, RefusesWhatItCannotVerify) {
  const TemporaryDirectory directory;
  EXPECT_EQ(run_captured({"verify"}).code, 2);
  EXPECT_EQ(run_captured({"verify", directory / "nothing"}).code, 2);
  EXPECT_EQ(run_captured({"verify", directory / "."}).code, 2);
  EXPECT_EQ(run_captured(
                {"verify", vectors("hf/gpt2"), vectors("hf/llama"), "--rewrite", directory / "out"})
                .code,
            2);
}

TEST(SelftestCommand, ExitsNonZeroUnderEachFaultAndNamesTheCheck) {
  for (const auto& [fault, check] : {std::pair{"dropped-all-reduce", "layouts/llama tied fp32"},
                                     {"doubled-gradient", "model/llama tied fp32"},
                                     {"shifted-rope-pairing", "model/llama tied fp32"},
                                     {"off-by-one-label", "model/llama tied fp32"}}) {
    const Result r = run_captured({"selftest", "--fault", fault, "--filter", "llama tied fp32"});
    EXPECT_EQ(r.code, 1) << r.out;
    EXPECT_TRUE(has(r.out, fmt::format("fault {}: caught by\n", fault))) << r.out;
    EXPECT_TRUE(has(r.out.substr(r.out.find("caught by")), check)) << r.out;
  }
  const Result sound = run_captured({"selftest", "--filter", "llama tied fp32"});
  EXPECT_EQ(sound.code, 0) << sound.out;
  EXPECT_TRUE(has(sound.out, "2 passed, 0 failed\n")) << sound.out;
  EXPECT_EQ(run_captured({"selftest", "--fault", "dropped-allreduce"}).code, 2);
}

}  // namespace
}  // namespace megatron::cli
