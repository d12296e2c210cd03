#include "plan/page.h"

#include <gtest/gtest.h>

#include "plan/figures.h"
#include "plan/plan_json.h"
#include "unit/plan/small_plan.h"

namespace megatron::plan {
namespace {

constexpr const char* kPage =
    R"(11.4M parameters, 4 layers, hidden 256, vocabulary 8192
bf16 on cpu, 2 ranks (tensor 1 x pipeline 1 x data 2) x 1 thread
Step: 16 sequences of 512 tokens = 2 ranks x 2 micro-batches of 4

Parameters             embedding  position   norm  attention    mlp  total
  embedding                2.10M      131k      -          -      -  2.23M
  layers.0 - layers.2          -         -  1.02k       263k   526k   790k  each
  layers.3                     -         -  1.02k       263k  2.11M  2.37M
  head                         -         -    512          -      -    512
  all                      2.10M      131k  4.61k      1.05M  3.68M  6.97M

Memory per rank: 350 MB
  P parameters           14.0 MB   4.0%
  G gradients            28.0 MB   8.0%
  O optimizer            70.0 MB  20.0%
  A activations           210 MB  60.0%
  S scratch              17.5 MB   5.0%
  H host                 10.5 MB   3.0%
  PPPGGGGGGOOOOOOOOOOOOOOAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAASSSSHH
  Megatron-LM's formulas give 205 MB for weights and optimizer, 450 MB for activations
Memory per process: 760 MB = 2 ranks and the program (60.0 MB)
  #######.................................................................  9.5% of 8.00 GB

FLOPs by formula            per step   per token
  model                    300 GFLOP  36.6 MFLOP  this program: causal attention counted half
  megatron                 350 GFLOP  42.7 MFLOP  Megatron-LM: the same with padded vocabulary
  megatron_full_attention  425 GFLOP  51.9 MFLOP  older Megatron-LM: attention counted in full

Communication per rank and step  ranks  calls    bytes     sent
  all_reduce gradients               2      1  28.0 MB  28.0 MB

Kernels per rank and step  calls       FLOPs    bytes    time   share
  gemm bf16                  120   290 GFLOP  8.00 GB  1.00 s   66.7%
  attention_backward bf16     16  5.00 GFLOP  1.00 GB  450 ms   30.0%
  adam f32                    50           -   300 MB   50 ms    3.3%
  all                        186   295 GFLOP  9.30 GB  1.50 s  100.0%

Estimated on this machine
  1.60 s per step, 5120 tokens/s, 37.5% of the GEMM peak (500 GFLOP/s); 1000 steps in 26m40s
)";

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(PlanPage, Letters) { EXPECT_EQ(page(small_plan(), {.blocks = false}), kPage); }

TEST(PlanPage, BlocksAreAsWide) {
  const std::string blocks = page(small_plan(), {.blocks = true});
  EXPECT_TRUE(contains(blocks, "  ███▓▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░"));
  EXPECT_EQ(columns(blocks), columns(page(small_plan(), {.blocks = false})));
  size_t begin = 0;
  for (size_t end; (end = blocks.find('\n', begin)) != std::string::npos; begin = end + 1)
    EXPECT_LE(columns(blocks.substr(begin, end - begin)), 96U);
}

TEST(PlanPage, UnknownIsToldSo) {
  Plan plan = small_plan();
  plan.step_seconds.reset();
  plan.kernels[1].seconds.reset();
  plan.machine = 0;
  plan.traffic.clear();
  plan.memory = {};
  const std::string text = page(plan, {.blocks = false});
  EXPECT_TRUE(contains(text, "Estimated on this machine: n/a\n")) << text;
  EXPECT_TRUE(contains(text, "the machine has n/a\n"));
  EXPECT_TRUE(contains(text, "Communication per rank and step: none\n"));
  EXPECT_TRUE(contains(text, "Memory per rank: 0 B\n"));
  EXPECT_TRUE(
      contains(text, "  all                        186   295 GFLOP  9.30 GB     n/a    n/a\n"));
}

TEST(PlanPage, ComparesExchanges) {
  Plan plan = small_plan();
  plan.exchanges = {
      .layers = 4,
      .all = {{.name = "p2p",
               .calls = 40,
               .sent = 1.6e7,
               .overlapped = 1.6e7,
               .activations = 210000000},
              {.name = "all_gather", .calls = 32, .sent = 8e6, .activations = 230000000},
              {.name = "a2a", .refused = "2 heads among 4 ranks"}},
      .given = {"p2p"}};
  const std::string text = page(plan, {.blocks = false});
  EXPECT_TRUE(contains(text, R"(
Exchange of tokens (--cp-comm-type)  per layer  per step  overlapped  activations
  p2p (this run)                       2.00 MB   16.0 MB      100.0%       210 MB
  all_gather                           1.00 MB   8.00 MB        0.0%       230 MB
  a2a: 2 heads among 4 ranks
  Bytes sent, per layer of a micro-batch and per step; all_gather sends the fewest
)")) << text;
  const Json json = Json::parse(to_json(plan).dump());
  const Json& exchanges = json["context_exchanges"];
  EXPECT_EQ(exchanges["cheapest"].as_string(), "all_gather");
  EXPECT_EQ(exchanges["all"].as_array()[0]["overlapped"].as_integer(), 16000000);
  EXPECT_TRUE(exchanges["all"].as_array()[2]["sent"].is_null());
  EXPECT_TRUE(to_json(small_plan())["context_exchanges"].is_null());
}

TEST(PlanPage, SaysWhatWouldHelp) {
  Plan plan = small_plan();
  plan.machine = 300'000'000;
  plan.suggestions = {"--micro-batch-size 2", "--recompute-granularity full"};
  EXPECT_FALSE(plan.fits());
  const std::string text = page(plan, {.blocks = false});
  EXPECT_TRUE(
      contains(text,
               "  The run does NOT fit: it needs 760 MB and the machine has 300 MB.\n"
               "  Each of the 2 ranks on this machine needs 350 MB: 228 MB for activations "
               "of micro-batches of 4 sequences of 512 tokens, 76.2 MB for weights, gradients and "
               "optimizer state of 4 layers.\n"
               "  What would help:\n    --micro-batch-size 2\n"
               "    --recompute-granularity full\n"))
      << text;
  EXPECT_TRUE(contains(text, "###!!!"));
  EXPECT_TRUE(contains(summary(plan)[3], "760 MB of the machine's 300 MB: does NOT fit"));
}

// The arenas are on the GPU, which two ranks share. Host memory holds offloaded tensors and data
// read ahead.
TEST(PlanPage, GpusHaveMemoryOfTheirOwn) {
  Plan plan = small_plan();
  plan.memory.arenas[static_cast<size_t>(MemoryClass::offload)] = 1'000'000;
  plan.gpu = GpuMemory{.name = "NVIDIA H200", .bytes = 150'000'000'000, .ranks = 2};
  EXPECT_EQ(plan.gpu_bytes(), 2 * 339'500'000 + GpuMemory::kOverhead);
  EXPECT_EQ(plan.process_bytes(), 60'000'000 + 2 * 11'500'000);
  EXPECT_TRUE(plan.fits());
  EXPECT_TRUE(contains(page(plan, {}), "Memory per GPU: 1.75 GB = 2 ranks and CUDA (1.07 GB)\n"));
  EXPECT_TRUE(contains(page(plan, {}), "  1.2% of 150 GB\n  NVIDIA H200\n"));
  EXPECT_TRUE(contains(summary(plan)[3], "memory per GPU: 1.75 GB of 150 GB (NVIDIA H200): fits"));
  plan.gpu->bytes = 1'000'000'000;
  plan.gpu->assumed = "from --device-memory";
  plan.step_seconds.reset();
  EXPECT_FALSE(plan.fits());
  EXPECT_TRUE(contains(page(plan, {}), "  NVIDIA H200: from --device-memory\n"));
  EXPECT_TRUE(
      contains(page(plan, {}), "does NOT fit: it needs 1.75 GB per GPU, which has 1.00 GB."));
  EXPECT_TRUE(
      contains(page(plan, {}), "Estimated on this machine: n/a (which has no GPU to measure)\n"));
  EXPECT_EQ(to_json(plan)["memory"]["gpu"]["needed"].as_integer(), plan.gpu_bytes());
  plan.gpu->processes = 2;
  EXPECT_EQ(plan.gpu_bytes(), 2 * 339'500'000 + 2 * GpuMemory::kOverhead);
}

TEST(PlanPage, ManyKernelsAreSummedUp) {
  Plan plan = small_plan();
  for (int i = 0; i < 20; ++i)
    plan.kernels.push_back({"kernel_" + std::to_string(i), DType::f32, 1, {0, 1e6}, 0.001});
  const std::string text = page(plan, {.blocks = false});
  EXPECT_TRUE(contains(text, "  15 others "));
  EXPECT_FALSE(contains(text, "kernel_6"));
}

TEST(PlanSummary, Lines) {
  const std::vector<std::string> lines = summary(small_plan());
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0],
            "plan: 11.4M parameters, 4 layers, hidden 256, vocabulary 8192; bf16 on cpu, 2 ranks "
            "(tensor 1 x pipeline 1 x data 2) x 1 thread");
  EXPECT_EQ(lines[1],
            "step: 16 sequences of 512 tokens = 2 ranks x 2 micro-batches of 4; 300 GFLOP, 28.0 MB "
            "sent per rank");
  EXPECT_EQ(lines[2],
            "memory per rank: 350 MB (parameters 14.0 MB, gradients 28.0 MB, optimizer 70.0 MB, "
            "activations 210 MB, scratch 17.5 MB, host 10.5 MB)");
  EXPECT_EQ(lines[3], "memory per process: 760 MB of the machine's 8.00 GB: fits");
  EXPECT_EQ(lines[4],
            "estimated: 1.60 s per step, 5120 tokens/s, 37.5% of the GEMM peak (500 GFLOP/s); 1000 "
            "steps in 26m40s");
}

TEST(PlanJson, FiguresAreWhole) {
  Plan plan = small_plan();
  plan.memory.arenas[0] = 9'007'199'254'740'993;  // not representable as a double
  const Json json = Json::parse(to_json(plan).dump());
  EXPECT_EQ(json["memory"]["rank"]["parameters"].as_integer(), 9'007'199'254'740'993);
  EXPECT_TRUE(json["flops"]["model"].is_integer());
  EXPECT_EQ(json["parameters"]["total"].as_integer(), plan.parameter_count());
  EXPECT_EQ(json["parameters"]["by_class"]["attention"].as_integer(), 4 * 263168);
  EXPECT_EQ(json["parameters"]["by_span"].as_array().size(), 6U);
  EXPECT_EQ(json["parameters"]["by_span"].as_array()[4]["total"].as_integer(), 2369536);
  EXPECT_DOUBLE_EQ(json["time"]["tokens_per_second"].as_number(), 5120);
  EXPECT_DOUBLE_EQ(json["time"]["peak_share"].as_number(), 0.375);
  EXPECT_DOUBLE_EQ(json["time"]["run_seconds"].as_number(), 1600);
}

TEST(PlanJson, UnknownIsNull) {
  Plan plan = small_plan();
  plan.step_seconds.reset();
  plan.machine = 0;
  plan.peak = 0;
  plan.megatron.reset();
  const Json json = to_json(plan);
  for (const auto& [key, value] : json["time"].as_object()) EXPECT_TRUE(value.is_null()) << key;
  EXPECT_TRUE(json["memory"]["machine"].is_null());
  EXPECT_TRUE(json["memory"]["megatron"].is_null());
}

TEST(Figures, ThreeDigits) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1.00k");
  EXPECT_EQ(count_text(124439808), "124M");
  EXPECT_EQ(count_text(999'999), "1.00M");
  EXPECT_EQ(count_text(174'600'000'000), "175B");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1'536'000), "1.54 MB");
  EXPECT_EQ(flops_text(3.3405978e18), "3.34 EFLOP");
  EXPECT_EQ(share_text(0.0001), "<0.1%");
  EXPECT_EQ(share_text(1.25), "125.0%");
  EXPECT_EQ(share_text(113.7), "114 x");
  EXPECT_EQ(seconds_text(0.0843), "84 ms");
  EXPECT_EQ(seconds_text(0.0012), "1.20 ms");
  EXPECT_EQ(seconds_text(59.99), "1m00s");
  EXPECT_EQ(seconds_text(86400 * 18 + 9 * 3600), "18d09h");
  EXPECT_EQ(seconds_text(86400.0 * 365.25 * 40), "40 years");
}

}  // namespace
}  // namespace megatron::plan
