// The program with --device cuda, on the CUDA plugin compiled for the CPU (tests/cuda_shim): every
// kernel, copy, stream and event of a run, except NVIDIA's libraries.
#include <cmath>

#include "base/tolerances.h"
#include "cuda/cli/planted.h"
#include "cuda/cli/training_runs.h"

namespace megatron::testing {
namespace {

// --- Models and trajectories of other systems.

class CudaVerify : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaVerify, EqualsTheOtherSystem) {
  const Workplace place;
  const Outcome r = place.run({"verify", "--device", "cuda", vectors(GetParam())});
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_NE(r.out.find(" on cuda in f32: passed"), std::string::npos) << r.out;
}

std::string last_name(const ::testing::TestParamInfo<std::string>& info) {
  return info.param.substr(info.param.find('/') + 1);
}
INSTANTIATE_TEST_SUITE_P(Models, CudaVerify,
                         ::testing::Values("hf/gpt2", "hf/llama", "hf/llama_bf16", "hf/llama_fp16",
                                           "hf/llama_sharded", "hf/llama_tied"),
                         last_name);
INSTANTIATE_TEST_SUITE_P(Runs, CudaVerify,
                         ::testing::Values("train/gpt2_cosine", "train/gpt2_mask",
                                           "train/gpt2_mask_microbatch", "train/llama_adamw",
                                           "train/llama_lion", "train/llama_muon",
                                           "train/llama_sgd", "train/llama_tied_clip",
                                           "train/llama_wsd"),
                         last_name);

TEST(CudaVerifyLayouts, RanksShareOneGpu) {
  const Workplace place;
  for (const char* axis : {"tensor-model", "pipeline-model"}) {
    const Outcome r = place.run({"verify", "--device", "cuda", vectors("hf/llama"),
                                 "--" + std::string(axis) + "-parallel-size", "2"});
    EXPECT_EQ(r.code, 0) << r.out << r.err;
  }
}

// --- Training.

struct Flags {
  std::string name, flags;
  const char* capability = "90";  // the GPU's: 9.0
};
void PrintTo(const Flags& flags, std::ostream* out) { *out << flags.flags; }

class CudaTraining : public ::testing::TestWithParam<Flags> {};

// In fp32 the losses equal the CPU's (DESIGN: 1e-4). In 16-bit types each is within the format's
// rounding of fp32.
TEST_P(CudaTraining, HasTheLossesOfTheCpu) {
  const Workplace place;
  const std::string& flags = GetParam().flags;
  const Planted gpu("CUDA_SHIM_CAPABILITY", GetParam().capability);
  std::string printed;
  const std::vector<Step> cpu = train(place, "cpu", 3, flags),
                          cuda = train(place, "cuda", 3, flags, &printed);
  EXPECT_EQ(printed.find("without tensor cores"), std::string::npos) << printed;
  ASSERT_EQ(cpu.size(), 3U);
  ASSERT_EQ(cuda.size(), 3U);
  const bool narrow = flags.find("16") != std::string::npos;
  const double bound = narrow ? tolerance::kCudaNarrowLossRelative : tolerance::kCudaLossRelative;
  for (size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_NEAR(cuda[i].loss, cpu[i].loss, bound * cpu[i].loss) << "step " << i + 1;
    if (std::isfinite(cpu[i].gradient_norm)) {
      EXPECT_NEAR(cuda[i].gradient_norm, cpu[i].gradient_norm, 10 * bound * cpu[i].gradient_norm);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, CudaTraining,
    ::testing::Values(
        Flags{"Gpt", ""}, Flags{"Bf16", "--bf16"},
        Flags{"Fp16", "--fp16 --initial-loss-scale 1024"},
        Flags{"Llama",
              "--swiglu --normalization RMSNorm --position-embedding-type rope "
              "--disable-bias-linear --untie-embeddings-and-output-weights "
              "--group-query-attention --num-query-groups 2"},
        Flags{"Hybrid",
              "--num-layers 3 --hybrid-layer-pattern M*- --mamba-num-heads 4 --mamba-head-dim 8 "
              "--mamba-num-groups 2 --mamba-state-dim 8 --position-embedding-type none "
              "--hidden-size 32 --global-batch-size 2 --seq-length 72 "
              "--max-position-embeddings 72 --reset-attention-mask"},
        Flags{"Documents", "--reset-attention-mask --reset-position-ids --eod-mask-loss"},
        Flags{"Tensor", "--tensor-model-parallel-size 2 --sequence-parallel"},
        Flags{"Pipeline", "--pipeline-model-parallel-size 2"},
        Flags{"Sharded",
              "--ranks 2 --use-megatron-fsdp --data-parallel-sharding-strategy "
              "optim_grads_params"},
        Flags{"Fp8", "--bf16 --fp8-format hybrid --fp8-recipe tensorwise"},
        Flags{"DelayedFp8OfRanks",
              "--bf16 --fp8-format e4m3 --tensor-model-parallel-size 2 --sequence-parallel"},
        Flags{"Fp4", "--bf16 --fp4-format e2m1"},
        Flags{"BlockwiseFp8", "--bf16 --fp8-format hybrid --fp8-recipe blockwise"},
        Flags{"Mxfp8OfBlackwell", "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8", "100"},
        Flags{"Fp4OfBlackwell",
              "--bf16 --fp4-format e2m1 --tensor-model-parallel-size 2 --sequence-parallel", "100"},
        Flags{"AnyOrder", "--bf16 --allow-nondeterministic"},
        Flags{"Recompute",
              "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"},
        Flags{"OffloadedActivations", "--cpu-offloading-num-layers 1"},
        Flags{"OffloadedOptimizer", "--optimizer-cpu-offload --use-distributed-optimizer"}),
    [](const auto& info) { return info.param.name; });

// The bits are the same in every run, and after a run is stopped and resumed.
class CudaBits : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaBits, AreTheSameInEveryRunAndAfterAResume) {
  const Workplace place;
  const std::string& flags = GetParam();
  const std::vector<Step> whole = train(place, "cuda", 4, flags);
  EXPECT_EQ(whole.size(), 4U);
  EXPECT_EQ(train(place, "cuda", 4, flags), whole);
  const std::string saved = flags + " --save run --load run --save-interval 2";
  std::vector<Step> parts = train(place, "cuda", 2, saved);
  for (const Step& step : train(place, "cuda", 4, saved)) parts.push_back(step);
  EXPECT_EQ(parts, whole);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaBits, ::testing::Values("", "--bf16"));

// The product passes its unrounded sums to gelu, also when it is recomputed.
TEST(CudaRecompute, HasTheBitsOfARunThatKeepsAll) {
  const Workplace place;
  const std::vector<Step> kept = train(place, "cuda", 3, "--bf16");
  EXPECT_EQ(kept.size(), 3U);
  EXPECT_EQ(train(place, "cuda", 3,
                  "--bf16 --recompute-granularity selective --recompute-modules mlp layernorm"),
            kept);
}

// In fp32 the product passes gelu the same values that are kept.
TEST(CudaRecompute, OfActivationsAloneHasThemToo) {
  const Workplace place;
  for (const std::string flags : {"", "--bf16 --swiglu --normalization RMSNorm "}) {
    const std::vector<Step> kept = train(place, "cuda", 2, flags);
    EXPECT_EQ(kept.size(), 2U);
    EXPECT_EQ(
        train(place, "cuda", 2,
              flags + "--recompute-granularity selective --recompute-modules mlp_act layernorm"),
        kept)
        << flags;
  }
}

// A checkpoint does not depend on the device.
TEST(CudaResume, TakesTheCheckpointOfTheCpu) {
  const Workplace place;
  const std::vector<Step> whole = train(place, "cpu", 4, "");
  const std::string saved = "--save run --load run --save-interval 2";
  train(place, "cpu", 2, saved);
  const std::vector<Step> rest = train(place, "cuda", 4, saved);
  ASSERT_EQ(rest.size(), 2U);
  for (size_t i = 0; i < rest.size(); ++i)
    EXPECT_NEAR(rest[i].loss, whole[i + 2].loss, tolerance::kCudaLossRelative * whole[i + 2].loss);
}

// --- Plans.

Json plan_of(const Workplace& place, const std::string& flags) {
  const Outcome r = place.run(with({"plan", "--json", "--no-time", "--device", "cuda"},
                                   words(kModel + flags + " --train-iters 3")));
  EXPECT_EQ(r.code, 0) << r.err;
  return Json::parse(r.out);
}

class CudaPlan : public ::testing::TestWithParam<Flags> {};

TEST_P(CudaPlan, IsWhatTheArenasThenHold) {
  const Workplace place;
  const Planted gpu("CUDA_SHIM_CAPABILITY", GetParam().capability);
  const std::string& flags = GetParam().flags;
  std::map<std::string, int64_t> planned, shown;
  const Json plan = plan_of(place, flags);
  for (const auto& [name, bytes] : plan["memory"]["rank"].as_object())
    if (name != "host" && name != "total") planned[name] = bytes.as_integer();
  train(place, "cuda", 3, flags);
  const std::vector<Json> steps = steps_of(place / "cuda.jsonl");
  ASSERT_FALSE(steps.empty());
  for (const auto& [name, bytes] : steps.back()["memory"].as_object())
    if (name != "process") shown[name] = bytes.as_integer();
  EXPECT_EQ(planned, shown);
}

// Each linear layer has three products of codes, and a pass over dy encodes it for two of them,
// unless they are apart in time or, in fp4, of other numbers.
TEST(CudaPlanKernels, QuantizedProductsAreOfCodesAndShareTheirGradient) {
  const Workplace place;
  struct Row {
    const char *flags, *capability;
    int64_t products, encoded, amax;
  };
  // 8 linear layers, 2 micro-batches.
  for (const auto& [flags, capability, products, encoded, amax] :
       {Row{"--fp8-format hybrid", "90", 48, 80, 80},
        Row{"--fp8-format hybrid --fp8-recipe tensorwise", "90", 48, 80, 80},
        Row{"--fp8-format hybrid --fp8-recipe blockwise", "90", 48, 80, 0},
        Row{"--fp8-format hybrid --fp8-recipe blockwise", "100", 0, 0, 0},
        Row{"--fp8-format e4m3 --fp8-recipe mxfp8", "100", 48, 80, 0},
        Row{"--fp8-format e4m3 --fp8-recipe mxfp8", "90", 0, 0, 0},
        Row{"--fp4-format e2m1", "100", 48, 96, 96}}) {
    const Planted gpu("CUDA_SHIM_CAPABILITY", capability);
    std::map<std::string, int64_t> calls;
    const Json plan = plan_of(place, std::string("--bf16 ") + flags);
    for (const Json& kernel : plan["kernels"].as_array())
      calls[kernel["kernel"].as_string()] += kernel["calls"].as_integer();
    EXPECT_EQ(calls["coded_gemm"], products) << flags;
    EXPECT_EQ(calls["encode_operand"], encoded) << flags;
    EXPECT_EQ(calls["amax"], amax) << flags;
    EXPECT_EQ(calls["quantize"] > 0, products == 0) << flags;
  }
}

// With a zero-bubble schedule a gradient is quantised again for the later product, to the same
// bits.
TEST(CudaZeroBubble, HasTheBitsOfOneForwardOneBackwardInFp8) {
  const Workplace place;
  for (const std::string recipe : {"tensorwise", "blockwise"}) {
    const std::string flags = "--bf16 --fp8-format hybrid --fp8-recipe " + recipe +
                              " --pipeline-model-parallel-size 2 --global-batch-size 8 "
                              "--pipeline-schedule ";
    const std::vector<Step> whole = train(place, "cuda", 3, flags + "1f1b");
    EXPECT_EQ(whole.size(), 3U);
    EXPECT_EQ(train(place, "cuda", 3, flags + "zb-h1"), whole) << recipe;
  }
}

// Tensor cores take 16 tokens of 8 bits or 32 of 4 bits at a time, and each generation knows other
// scales of blocks. The page says which products are computed in bf16.
TEST(CudaPlanText, SaysWhichQuantizedProductsAreComputedInBf16) {
  const Workplace place;
  const auto page = [&](const char* capability, const std::string& flags) {
    const Planted gpu("CUDA_SHIM_CAPABILITY", capability);
    return place
        .run(with(
            {"plan", "--no-time", "--device", "cuda"},
            words(std::string(kModel) + "--bf16 --train-iters 3 --micro-batch-size 1 " + flags)))
        .out;
  };
  const std::string fp8 = "--fp8-format hybrid ", fp4 = "--fp4-format e2m1 ";
  const auto expect = [&](const char* capability, const std::string& flags, const char* text) {
    const std::string found = page(capability, flags);
    if (*text == 0) EXPECT_EQ(found.find("bf16 units"), std::string::npos) << flags << found;
    else EXPECT_NE(found.find(text), std::string::npos) << flags << found;
  };
  expect("90", fp8 + "--seq-length 24",
         "GPU's bf16 units, since a rank's 24 tokens of a micro-batch are no multiple of 16");
  expect("100", fp4 + "--seq-length 48",
         "products of fp4 weight gradients (sums over 48 tokens, no multiple of 32) run on");
  expect("100", fp8 + "--fp8-recipe mxfp8 --fp8-output-proj",
         "products of logits and their gradient run on the GPU's bf16 units");
  for (const char* recipe : {"delayed", "tensorwise", "blockwise"})
    expect("90", fp8 + "--fp8-recipe " + recipe, "");
  expect("100", fp8 + "--fp8-recipe mxfp8", "");
  expect("100", fp4, "");
  const char* const none = "quantized products run on the GPU's bf16 units";
  expect("90", fp8 + "--fp8-recipe mxfp8", none);
  expect("90", fp4, none);
  for (const char* capability : {"80", "89", "100"})
    expect(capability, fp8 + "--fp8-recipe blockwise", none);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, CudaPlan,
    ::testing::Values(
        Flags{"Gpt", ""}, Flags{"Bf16", "--bf16"}, Flags{"Fp16", "--fp16"},
        Flags{"Fp8Graphs",
              "--bf16 --fp8-format hybrid --cuda-graph-impl local --cuda-graph-warmup-steps 1"},
        Flags{"BlockwiseGraphs",
              "--bf16 --fp8-format e4m3 --fp8-recipe blockwise --cuda-graph-impl local "
              "--cuda-graph-warmup-steps 1"},
        Flags{"Mxfp8", "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8", "100"},
        Flags{"Fp4Graphs",
              "--bf16 --fp4-format e2m1 --cuda-graph-impl local --cuda-graph-warmup-steps 1",
              "100"},
        Flags{"Graphs", "--cuda-graph-impl local --cuda-graph-warmup-steps 1"},
        Flags{"TensorGraphs",
              "--cuda-graph-impl local --cuda-graph-warmup-steps 1 "
              "--tensor-model-parallel-size 2 --sequence-parallel"},
        Flags{"PipelineGraphs",
              "--cuda-graph-impl local --cuda-graph-warmup-steps 1 "
              "--pipeline-model-parallel-size 2 --global-batch-size 8"},
        Flags{"Recompute",
              "--bf16 --swiglu --recompute-granularity selective "
              "--recompute-modules mlp_act layernorm"},
        Flags{"CudnnAttention",
              "--bf16 --micro-batch-size 1 --seq-length 128 --max-position-embeddings 128 "
              "--attention-dropout 0"},
        Flags{"CudnnAttentionAnyOrder",
              "--bf16 --micro-batch-size 1 --seq-length 128 --max-position-embeddings 128 "
              "--attention-dropout 0 --allow-nondeterministic"},
        Flags{"ExpertsCapacity",
              "--num-experts 4 --moe-router-topk 2 --ranks 2 --expert-model-parallel-size 2 "
              "--moe-expert-rank-capacity-factor 1.75"},
        Flags{"ExpertsOverlapped",
              "--num-experts 4 --moe-router-topk 2 --ranks 2 --expert-model-parallel-size 2 "
              "--global-batch-size 24 --overlap-moe-expert-parallel-comm"}),
    [](const auto& info) { return info.param.name; });

TEST(CudaPlanChoice, ARunSaysHowLargePartsOfAttentionMayBe) {
  const Workplace place;
  std::string printed;
  train(place, "cuda", 1, "--bf16", &printed);
  EXPECT_NE(printed.find("--attention-workspace-mib 1280"), std::string::npos) << printed;
  train(place, "cuda", 1, "", &printed);
  EXPECT_EQ(printed.find("--attention-workspace-mib"), std::string::npos) << "fp32: no cuDNN";
}

// --- Evaluation and generation.

TEST(CudaModel, EvaluatesAndContinuesTextAsTheCpu) {
  const Workplace place;
  make_tiny_run(place);
  std::map<std::string, std::string> texts, losses;
  for (const std::string device : {"cpu", "cuda"}) {
    const Outcome text =
        place.run({"generate", "--load", "run", "--device", device, "--prompt", "The file",
                   "--prompt", "A", "--max-tokens", "6", "--temperature", "0", "--threads", "1"});
    EXPECT_EQ(text.code, 0) << text.err;
    texts[device] = text.out;
    const Outcome loss = place.run({"eval", "--load", "run", "--device", device, "--data-path",
                                    "data", "--threads", "1", "--json"});
    EXPECT_EQ(loss.code, 0) << loss.err;
    losses[device] = loss.out;
  }
  EXPECT_EQ(texts["cuda"], texts["cpu"]);
  const double cpu = Json::parse(losses["cpu"])["loss"].as_number();
  EXPECT_NEAR(Json::parse(losses["cuda"])["loss"].as_number(), cpu,
              tolerance::kCudaLossRelative * cpu);
}

// The GPU is the default if one is found.
TEST(CudaDefault, IsTheGpu) {
  const Workplace place;
  const Outcome r = place.run(with({"train"}, words(std::string(kModel) + "--train-iters 1")));
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE((r.out + r.err).find("f32 on cuda"), std::string::npos) << r.out << r.err;
}

// Forward has the bits of whole feed-forward blocks, and sums of gradients over tokens, whose order
// follows the shapes of products, differ by rounding.
TEST(CudaChunks, OfFeedForwardBlocksHaveTheGradientsOfWholeOnes) {
  const Workplace place;
  const std::string flags = "--swiglu --disable-bias-linear --tensor-model-parallel-size 2 ";
  const std::vector<Step> whole = train(place, "cuda", 2, flags),
                          chunks = train(place, "cuda", 2, flags + "--mlp-chunks-for-training 3");
  ASSERT_EQ(whole.size(), 2U);
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(chunks[0].loss, whole[0].loss);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_NEAR(chunks[i].gradient_norm, whole[i].gradient_norm,
                tolerance::kLayoutFp32 * whole[i].gradient_norm);
}

// Runs a copy of the program next to a shared object that cannot be opened.
TEST(CudaDefault, IsTheCpuWhereNoGpuCanBeUsedAndSaysSo) {
  const Workplace place;
  const std::string program = place / "megatron";
  fs::copy_file(MEGATRON_BINARY, program);
  write_file(place / "libmegatron_cuda.so", "no library");
  const auto run = [&](const std::string& device) {
    const std::string command = "cd " + place.path() + " && ./megatron train " + kModel +
                                " --train-iters 1 --device " + device + " >out 2>&1";
    const int status = std::system(command.c_str());
    return std::pair(WEXITSTATUS(status), read_file(place / "out"));
  };
  const auto [code, text] = run("auto");
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("f32 on cpu"), std::string::npos) << text;
  EXPECT_NE(text.find("--device cpu"), std::string::npos) << text;
  EXPECT_NE(text.find("CUDA cannot be used: "), std::string::npos) << text;
  const auto [refused, error] = run("cuda");
  EXPECT_EQ(refused, 2) << error;
  EXPECT_NE(error.find("use --device cpu"), std::string::npos) << error;
}

}  // namespace
}  // namespace megatron::testing
