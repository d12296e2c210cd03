// Small runs of `megatron bench` and `megatron plan` with a GPU, on the CUDA plugin for the CPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "base/json.h"
#include "golden/cli/process.h"
#include "text.h"

namespace megatron::testing {
namespace {

const std::string kTiny =
    "bench step --device cuda --bf16 --num-layers 1 --hidden-size 32 --num-attention-heads 2 "
    "--vocab-size 100 --seq-length 16 --micro-batch-size 1 --train-iters 3 --threads 1 "
    "--floor-seconds 0.0001 ";

TEST(CudaBench, StepPrintsItsSpeedAndEachKernelOfIt) {
  const Workplace place;
  const Outcome r = place.run(words(kTiny));
  ASSERT_EQ(r.code, 0) << r.err;
  // Attention in forward and backward; the biases, gelu and its gradient in a layer.
  EXPECT_TRUE(has(r.out,
                  "computed by: attention this program's own kernels (2 calls); epilogues fused 6 "
                  "of 6; recompute none; CUDA graphs none; deterministic\n"))
      << r.out;
  for (const char* part :
       {"tokens/s", "% of bf16 GEMM peak", "over 2 steps", "loss ", "on mock data",
        "CUDA shim on the CPU, CUDA 13.0", "clocks and power unavailable: NVIDIA's management",
        "ms a call", "N T 16 x 32 x 32 bf16", "attention_backward", "add_layer_norm", "adam",
        "kernels ", "% of the floor's speed"})
    EXPECT_TRUE(has(r.out, part)) << part << "\n" << r.out;
}

TEST(CudaBench, StepSaysWhatComputedIt) {
  const Workplace place;
  const std::string flags =
      "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
      "--cuda-graph-impl local --cuda-graph-warmup-steps 1 --allow-nondeterministic --no-floor "
      "--plan-runs 0 ";
  const Outcome text = place.run(words(kTiny + flags));
  EXPECT_TRUE(has(text.out,
                  "; recompute full uniform 1; CUDA graphs local (1 captured, 2 replayed); "
                  "nondeterministic\n"))
      << text.out << text.err;
  const Outcome r = place.run(words(kTiny + flags + "--json"));
  ASSERT_EQ(r.code, 0) << r.err;
  const Json by = Json::parse(r.out)["computed_by"];
  EXPECT_EQ(by["attention"]["cudnn"].as_integer(), 0);
  EXPECT_EQ(by["attention"]["own"].as_integer(), 3);  // forward twice, backward once
  EXPECT_EQ(by["recompute"].as_string(), "full uniform 1");
  EXPECT_EQ(by["graphs_launched"].as_integer(), 2);
  EXPECT_FALSE(by["deterministic"].as_bool());
  const Outcome cpu = place.run(words(kTiny + flags + "--device cpu --cuda-graph-impl none"));
  EXPECT_TRUE(
      has(cpu.out,
          "computed by: this program's own kernels; recompute full uniform 1; nondeterministic"))
      << cpu.out << cpu.err;
}

// The steps complete, and the later measurements run out of memory: the speed is still printed. How
// many allocations the steps need varies a little between runs.
TEST(CudaBench, WhatFailsAfterTheStepsCostsNoneOfTheirFigures) {
  const Workplace place;
  const auto run = [&](int allocations) {
    const std::string command =
        "cd " + place.path() + " && CUDA_SHIM_ALLOCATIONS=" + std::to_string(allocations) + " " +
        MEGATRON_BINARY + " " + kTiny + "--no-floor --plan-runs 0 >said 2>errors";
    const int status = std::system(command.c_str());
    return Outcome{WEXITSTATUS(status), read_file(place / "said"), read_file(place / "errors")};
  };
  int least = 0, most = 128;  // too few allocations for the steps, and enough
  while (most - least > 1) {
    const int middle = (least + most) / 2;
    (has(run(middle).out, "iteration      3/3") ? most : least) = middle;
  }
  bool failed_later = false;
  for (int allocations = most; !failed_later && allocations < most + 16; ++allocations) {
    const Outcome r = run(allocations);
    if (!has(r.out, "iteration      3/3")) continue;
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_TRUE(has(r.out, " tokens/s, ")) << r.out;
    failed_later = has(r.err, "after them it could not be measured: ");
  }
  EXPECT_TRUE(failed_later);
}

TEST(CudaBench, KernelsOfAStepAreMeasuredWithoutIt) {
  const Workplace place;
  const Outcome r = place.run(words(kTiny + "--kernels-only --json"));
  ASSERT_EQ(r.code, 0) << r.err;
  const Json found = Json::parse(r.out);
  EXPECT_GT(found["gemm_peak"].as_number(), 0);
  EXPECT_GT(found["copy_bandwidth"].as_number(), 0);
  int64_t products = 0;
  double before = 1e30;
  for (const Json& kernel : found["kernels"].as_array()) {
    EXPECT_GT(kernel["seconds"].as_number(), 0);
    EXPECT_GT(kernel["percent"].as_number(), 0);
    const double all =
        kernel["seconds"].as_number() * static_cast<double>(kernel["calls"].as_integer());
    EXPECT_LE(all, before);  // the slowest comes first
    before = all;
    if (kernel["kernel"].as_string() == "gemm") products += kernel["calls"].as_integer();
  }
  EXPECT_EQ(products, 3 * (4 + 1));  // the products of a layer, and the logits
}

TEST(CudaBench, KernelsAreHeldAgainstTheGpu) {
  const Workplace place;
  const Outcome r = place.run(words(
      "bench kernels --device cuda --kernel weighted_sum --seconds 0.0001 --threads 1 --json"));
  ASSERT_EQ(r.code, 0) << r.err;
  const Json found = Json::parse(r.out);
  EXPECT_TRUE(has(found["device"].as_string(), "CUDA shim on the CPU"));
  ASSERT_FALSE(found["kernels"].as_array().empty());
  for (const Json& row : found["kernels"].as_array()) {
    EXPECT_EQ(row["limit"].as_string(), "copy");
    EXPECT_GT(row["percent"].as_number(), 0);
    EXPECT_TRUE(row["bytes_per_second_in_cache"].is_null());
  }
}

// A kernel that cannot be measured, here for lack of memory, loses only its own row.
TEST(CudaBench, AKernelThatFailsIsNamedBesideTheOthers) {
  const Workplace place;
  const std::string command = "cd " + place.path() + " && CUDA_SHIM_MEMORY=300000000 " +
                              MEGATRON_BINARY +
                              " bench kernels --device cuda --kernel column_sum --seconds 0.0001 "
                              "--threads 1 >said 2>errors";
  const int status = std::system(command.c_str());
  const std::string said = read_file(place / "said"), errors = read_file(place / "errors");
  EXPECT_EQ(WEXITSTATUS(status), 1) << said << errors;
  for (const char* part : {"column_sum  t=4096 n=768 f32 accumulated", " copy", "fp32 GEMM peak"})
    EXPECT_TRUE(has(said, part)) << part << "\n" << said;
  EXPECT_TRUE(has(errors, "column_sum, t=4096 n=3072 f32 accumulated: not measured: out of "))
      << errors;
}

TEST(CudaBench, GenerateAndGemm) {
  const Workplace place;
  const Outcome text = place.run(
      words("bench generate --device cuda --num-layers 1 --hidden-size 32 --num-attention-heads 2 "
            "--vocab-size 100 --max-position-embeddings 16 --prompt-tokens 4 --max-tokens 3 "
            "--batch-size 2 --threads 1"));
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* part :
       {"decode, batch of 1", "decode, batch of 2", "prefill of 4 tokens", "CUDA shim on the CPU",
        "1 of 3 passes were launched as CUDA graphs; 1 graphs were captured, which use "})
    EXPECT_TRUE(has(text.out, part)) << part << "\n" << text.out;
  const Outcome gemm = place.run(words("bench gemm --device cuda --seconds 0.01 --threads 1"));
  EXPECT_EQ(gemm.code, 0) << gemm.err;
  EXPECT_TRUE(has(gemm.out, "fp32 GEMM peak") || has(gemm.out, "f32 GEMM peak")) << gemm.out;
}

// Clocks and power come from the management library, if there is one.
TEST(CudaBench, ClocksAndPowerAreTold) {
  const Workplace place;
  const std::string command = "cd " + place.path() +
                              " && LD_LIBRARY_PATH=" MEGATRON_PLAYED "/management " MEGATRON_BINARY
                              " " +
                              kTiny + "--no-floor >said 2>&1";
  const int status = std::system(command.c_str());
  const std::string said = read_file(place / "said");
  EXPECT_EQ(WEXITSTATUS(status), 0) << said;
  EXPECT_TRUE(
      has(said, "SM clock 1965 to 1980 MHz (most 1980), power 612 to 612 W (limit 700 W), 61 C"))
      << said;
}

TEST(CudaPlanning, NamesTheMemoryOfTheGpu) {
  const Workplace place;
  const std::string run =
      "plan --device cuda --mock-data --vocab-size 203 --num-layers 2 --hidden-size 64 "
      "--num-attention-heads 4 --seq-length 64 --micro-batch-size 2 --threads 1 ";
  const Outcome fits = place.run(words(run));
  ASSERT_EQ(fits.code, 0) << fits.err;
  EXPECT_TRUE(has(fits.out, "Memory per GPU: ")) << fits.out;
  EXPECT_TRUE(has(fits.out, "of 2.15 GB\n  CUDA shim on the CPU\n")) << fits.out;
  EXPECT_FALSE(has(fits.out, "Estimated on this machine: n/a")) << fits.out;
  const Outcome small = place.run(words(run + "--no-time --device-memory 0.5"));
  EXPECT_TRUE(has(small.out, "The run does NOT fit: it needs ")) << small.out;
  EXPECT_TRUE(has(small.out, "per GPU, which has 537 MB")) << small.out;
  EXPECT_EQ(place.run(words(run + "--device-memory -1")).code, 2);
}

// Training refuses before its first step if the GPU's memory is too small.
TEST(CudaPlanning, TrainingNamesTheMemoryOfTheGpu) {
  const Workplace place;
  const Outcome r = place.run(
      words("train --device cuda --mock-data --vocab-size 100000 --num-layers 8 --hidden-size 512 "
            "--num-attention-heads 8 --seq-length 64 --micro-batch-size 2 --lr 1e-3 "
            "--train-iters 2 --threads 1"));
  EXPECT_EQ(r.code, 2) << r.out;
  for (const char* part : {"1 rank on a GPU", "and the GPU (CUDA shim on the CPU) has 2.1 GB"})
    EXPECT_TRUE(has(r.err, part)) << part << "\n" << r.err;
}

}  // namespace
}  // namespace megatron::testing
