// After its first step a run requests no more memory: no arena grows, and the heap provides no
// block of more than 4 KiB. This program intercepts every allocation, whichever library makes it.
#include <execinfo.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "amx_emulator.h"
#include "golden/training/support.h"

namespace {

constexpr size_t kLargest = 4096;  // bytes
constexpr int kKept = 8, kDepth = 24;

// Counts allocations above kLargest while counting is on.
struct Counter {
  std::atomic<bool> on = false;
  std::atomic<int> count = 0;
  std::array<size_t, kKept> bytes{};
  std::array<std::array<void*, kDepth>, kKept> callers{};
  std::array<int, kKept> depths{};

  void add(size_t size) {
    if (size <= kLargest || !on) return;
    const int i = count++;
    if (i >= kKept) return;
    const auto at = static_cast<size_t>(i);
    bytes[at] = size;
    depths[at] = backtrace(callers[at].data(), kDepth);
  }
};
Counter counter;

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  counter.add(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  counter.add(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  counter.add(bytes);
  return __libc_realloc(old, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  counter.add(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  *out = memalign(alignment, bytes);
  return *out == nullptr ? ENOMEM : 0;
}
}

namespace megatron::training {
namespace {

// Call stacks of the allocations, for whoever has to find them.
std::string found() {
  std::string text;
  for (int i = 0; i < std::min(counter.count.load(), kKept); ++i) {
    const auto at = static_cast<size_t>(i);
    text += std::to_string(counter.bytes[at]) + " bytes from\n";
    char** const names = backtrace_symbols(counter.callers[at].data(), counter.depths[at]);
    for (int k = 2; k < counter.depths[at]; ++k) text += "    " + std::string(names[k]) + "\n";
    free(names);
  }
  return text;
}

// Four sequences of 288 tokens, so that every array that grows with tokens exceeds the limit.
settings::TrainSettings settings(bool llama) {
  settings::TrainSettings s = llama ? tiny_llama() : tiny_gpt2();
  s.shape.hidden_size = 64;
  s.shape.vocab_size = 1103;
  s.batch.seq_length = 288;
  s.batch.micro_batch_size = 4;
  s.batch.global_batch_size = 8;
  s.batch.train_iters = 6;
  s.log.log_interval = 1;
  return s;
}

TrainResult expect_no_allocation(const settings::TrainSettings& s, const std::string& what) {
  void* frames[1];
  backtrace(frames, 1);  // loads its library first
  counter.count = 0;
  TrainHooks hooks{.peak = 1e12};
  hooks.after_step = [&](const IterationReport& report) {
    // A thread allocates its buffers with its first block of a product. In steps as small as these,
    // other threads may have done all blocks before it wakes, so that its first block comes late.
    if (report.iteration == 4) counter.on = true;
    if (report.iteration == *s.batch.train_iters - 1) counter.on = false;
  };
  const TrainResult result = train(s, hooks);
  counter.on = false;
  EXPECT_EQ(counter.count, 0) << what << "\n" << found();
  return result;
}

TEST(Allocation, CounterSeesLargeOnes) {
  counter.count = 0;
  counter.on = true;
  const std::vector<char> large(kLargest + 1), small(kLargest);
  counter.on = false;
  EXPECT_EQ(counter.count, 1);
}

TEST(Allocation, AStepTakesNothingFromTheHeap) {
  for (const bool llama : {true, false}) {
    for (const auto& [type, products] : kernels::cpu::types_and_ways()) {
      const kernels::cpu::UseBf16Products use(products);
      settings::TrainSettings s = settings(llama);
      s.precision.bf16 = type == DType::bf16;
      s.runtime.threads = 2;
      if (slow(products)) {
        s.batch.micro_batch_size = 1;
        s.batch.global_batch_size = 2;
      }
      expect_no_allocation(
          s, (llama ? "llama " : "gpt2 ") + std::string(name(type)) + " " + str(products));
    }
  }
}

TEST(Allocation, NorWithRecomputeDropoutAndSeveralRanks) {
  settings::TrainSettings s = settings(false);
  s.recompute.granularity = "full";
  s.shape.hidden_dropout = s.shape.attention_dropout = 0.1;
  expect_no_allocation(s, "recompute, dropout");
  s.runtime.ranks = 2;
  expect_no_allocation(s, "two ranks");
}

// Four layers, so that stages, chunks and recomputed blocks get several each.
settings::TrainSettings spread(bool bf16, int ranks) {
  settings::TrainSettings s = settings(false);
  s.shape.num_layers = 4;
  s.precision.bf16 = bf16;
  s.runtime.ranks = ranks;
  return s;
}

TEST(Allocation, NorWithTensorParallelism) {
  for (const bool sequence : {false, true}) {
    settings::TrainSettings s = spread(sequence, 2);
    s.parallel.tensor_parallel = 2;
    s.parallel.sequence_parallel = sequence;
    expect_no_allocation(s, sequence ? "TP 2, tokens divided" : "TP 2");
  }
}

// fp16 computes by widening. The first step overflows and is skipped. The scale doubles after each
// step that follows, so that a later one overflows again.
TEST(Allocation, NorWithFp16) {
  for (const bool llama : {true, false}) {
    settings::TrainSettings s = settings(llama);
    s.precision.fp16 = true;
    s.precision.loss_scaling.initial = 0x1p24;
    s.precision.loss_scaling.window = 1;
    s.precision.loss_scaling.hysteresis = 1;
    s.batch.train_iters = 16;
    const TrainResult result = expect_no_allocation(s, llama ? "llama fp16" : "gpt2 fp16");
    const auto& steps = result.iterations;
    const auto made = std::ranges::find(steps, StepOutcome::updated, &IterationReport::outcome);
    EXPECT_EQ(steps.front().outcome, StepOutcome::overflow);
    ASSERT_LT(made, steps.end() - 2);
    EXPECT_NE(
        std::find_if(made, steps.end() - 2,
                     [](const IterationReport& r) { return r.outcome != StepOutcome::updated; }),
        steps.end() - 2);
  }
}

TEST(Allocation, NorWithAnyOptimizer) {
  for (const optim::Method method :
       {optim::Method::sgd, optim::Method::lion, optim::Method::muon}) {
    for (const bool bf16 : {false, true}) {
      settings::TrainSettings s = settings(!bf16);
      s.precision.bf16 = bf16;
      s.optimizer.config.method = method;
      expect_no_allocation(s, std::string(optim::name(method)) + (bf16 ? " bf16" : " fp32"));
    }
  }
}

TEST(Allocation, NorWithMomentsOfSixteenBits) {
  settings::TrainSettings s = settings(true);
  s.precision.bf16 = true;
  s.optimizer.config.exp_avg_type = s.optimizer.config.exp_avg_sq_type = DType::bf16;
  expect_no_allocation(s, "bf16 moments");
}

TEST(Allocation, NorWithMuonOfTensorRanks) {
  settings::TrainSettings s = spread(true, 2);
  s.optimizer.config.method = optim::Method::muon;
  s.parallel.tensor_parallel = 2;
  expect_no_allocation(s, "muon, TP 2");
}

std::string words(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

class AllocationOfSchedule : public ::testing::TestWithParam<const char*> {};

TEST_P(AllocationOfSchedule, TakesNothingFromTheHeap) {
  const std::string schedule = GetParam();
  settings::TrainSettings s = spread(schedule == "zb-v", 2);
  s.parallel.pipeline_parallel = 2;
  s.parallel.schedule = schedule;
  if (schedule == "interleaved") s.parallel.virtual_stages = 2;
  expect_no_allocation(s, "PP 2, " + schedule);
}

INSTANTIATE_TEST_SUITE_P(Any, AllocationOfSchedule,
                         ::testing::Values("1f1b", "interleaved", "zb-h1", "zb-v"), words);

class AllocationOfShards : public ::testing::TestWithParam<const char*> {};

TEST_P(AllocationOfShards, TakesNothingFromTheHeap) {
  const std::string strategy = GetParam();
  settings::TrainSettings s = spread(strategy == "optim", 2);
  s.parallel.sharding_strategy = strategy;
  s.parallel.distributed_optimizer = strategy != "no_shard";
  s.parallel.overlap_grad_reduce = true;
  s.parallel.overlap_param_gather = strategy != "no_shard";
  expect_no_allocation(s, "DP 2, " + strategy);
}

INSTANTIATE_TEST_SUITE_P(Any, AllocationOfShards,
                         ::testing::Values("no_shard", "optim", "optim_grads",
                                           "optim_grads_params"),
                         words);

TEST(Allocation, NorWithRecomputedParts) {
  settings::TrainSettings s = spread(true, 1);
  s.recompute.granularity = "selective";
  s.recompute.modules = {"core_attn", "mlp", "layernorm"};
  expect_no_allocation(s, "selective recompute");
  s.recompute.modules = {"mlp_act", "layernorm"};
  expect_no_allocation(s, "selective recompute without products");
  s = spread(false, 1);
  s.recompute.granularity = "full";
  s.recompute.method = "block";
  s.recompute.num_layers = 2;
  expect_no_allocation(s, "recompute, block");
}

TEST(Allocation, NorWithStateInHostMemory) {
  settings::TrainSettings s = spread(true, 1);
  s.offload.num_layers = 2;
  expect_no_allocation(s, "activation offload");
  s = spread(false, 1);
  s.offload.optimizer = true;
  expect_no_allocation(s, "optimizer offload");
}

TEST(Allocation, NorWithAllAtOnce) {
  settings::TrainSettings s = spread(true, 4);
  s.parallel.tensor_parallel = s.parallel.pipeline_parallel = 2;
  s.parallel.sequence_parallel = true;
  expect_no_allocation(s, "TP 2, PP 2, tokens divided");
  s.batch.global_batch_size = 16;
  s.parallel.tensor_parallel = 1;
  s.parallel.sequence_parallel = false;
  s.parallel.distributed_optimizer = s.parallel.overlap_grad_reduce =
      s.parallel.overlap_param_gather = true;
  expect_no_allocation(s, "PP 2, DP 2, distributed optimizer");
}

TEST(Allocation, NorWithDataOfDocuments) {
  settings::TrainSettings s = settings(true);
  s.data.reset_attention_mask = s.data.reset_position_ids = true;
  s.run.dataloader_type = "cyclic";
  expect_no_allocation(s, "documents, cyclic");
}

}  // namespace
}  // namespace megatron::training

#endif
