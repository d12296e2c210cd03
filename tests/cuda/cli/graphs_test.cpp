// Runs whose micro-batches are recorded and replayed (--cuda-graph-impl local) are bit-identical to
// runs that are not recorded.
#include "cuda/cli/training_runs.h"

namespace megatron::testing {
namespace {

struct Counts {
  int recorded = -1, launched = -1;
};

// "CUDA graphs: 2 recorded, 8 micro-batches launched from them"
Counts counts_in(const std::string& printed) {
  Counts counts;
  const std::string before = "CUDA graphs: ";
  const size_t at = printed.find(before);
  if (at == printed.npos) return counts;
  std::istringstream in(printed.substr(at + before.size()));
  std::string word;
  in >> counts.recorded >> word >> counts.launched;
  return counts;
}

const std::string kSmall =
    "--seq-length 32 --hidden-size 32 --num-attention-heads 2 --micro-batch-size 1 "
    "--global-batch-size 2 ";
const std::string kRecorded = " --cuda-graph-impl local --cuda-graph-warmup-steps 2";

struct Case {
  std::string name, flags;
  int recorded = 2, launched = 8;  // the last 4 of 6 steps, 2 micro-batches each
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.flags; }

class CudaGraphs : public ::testing::TestWithParam<Case> {};

TEST_P(CudaGraphs, HaveTheBitsOfARunWithoutThem) {
  const Workplace place;
  const std::string flags = kSmall + GetParam().flags;
  const std::vector<Step> eager = train(place, "cuda", 6, flags);
  ASSERT_EQ(eager.size(), 6U);
  std::string printed;
  EXPECT_EQ(train(place, "cuda", 6, flags + kRecorded, &printed), eager);
  const Counts counts = counts_in(printed);
  EXPECT_EQ(counts.recorded, GetParam().recorded) << printed;
  EXPECT_EQ(counts.launched, GetParam().launched) << printed;
}

const std::string kLlama =
    "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --group-query-attention --num-query-groups 1 ";

INSTANTIATE_TEST_SUITE_P(
    Runs, CudaGraphs,
    ::testing::Values(
        Case{"Gpt", ""},  // with dropout and a weight that is used twice
        Case{"Bf16", "--bf16"},
        // The scale falls while graphs are recorded and grows while they are replayed.
        Case{"Fp16", "--fp16 --initial-loss-scale 131072 --loss-scale-window 2 --hysteresis 1"},
        Case{"Llama", kLlama}, Case{"LlamaBf16", kLlama + "--bf16"},
        Case{"Recompute",
             "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"},
        Case{"RecomputeParts",
             "--recompute-granularity selective --recompute-modules core_attn mlp"},
        Case{"Frozen", kLlama + "--bf16 --freeze *embed* *layers.0.* *mlp*"},
        // The products of steps 5 and 6 are others than those that were recorded.
        Case{"LeavesFp4", "--bf16 --fp4-format e2m1 --fp4-switch-to-bf16-at 5", 4, 6},
        Case{"Documents", "--reset-attention-mask --reset-position-ids --eod-mask-loss"},
        // Steps of one micro-batch, then of two: the second micro-batch first runs in step 4.
        Case{"GrowingBatch", "--rampup-batch-size 1 1 3", 2, 6},
        // The first micro-batch of a step waits for parameters, the last begins reductions.
        Case{"Ranks",
             "--num-layers 1 --ranks 2 --global-batch-size 6 --use-distributed-optimizer "
             "--overlap-grad-reduce --overlap-param-gather",
             1, 4},
        // Includes NCCL calls: sums in NCCL's order, and in rank order (bf16).
        Case{"Tensor", "--num-layers 1 --tensor-model-parallel-size 2"},
        Case{"TensorBf16", kLlama + "--num-layers 1 --tensor-model-parallel-size 2 --bf16"},
        Case{"Sequence",
             "--num-layers 1 --tensor-model-parallel-size 2 --sequence-parallel "
             "--recompute-granularity selective --recompute-modules core_attn mlp"},
        Case{"TensorAndData",
             "--num-layers 1 --ranks 4 --global-batch-size 4 --tensor-model-parallel-size 2 "
             "--use-distributed-optimizer"},
        // The ring's calls use their own stream, concurrent with attention.
        Case{"Context", "--num-layers 1 --context-parallel-size 2"},
        Case{"ContextDocumentsBf16", kLlama + "--num-layers 1 --context-parallel-size 2 --bf16 "
                                              "--reset-attention-mask --reset-position-ids"},
        Case{"ContextGathers",
             kLlama + "--num-layers 1 --context-parallel-size 2 --cp-comm-type all_gather"},
        Case{"ContextByHeads", "--num-layers 1 --context-parallel-size 2 --cp-comm-type a2a"},
        Case{"ContextAndTensor",
             "--num-layers 1 --ranks 4 --context-parallel-size 2 --tensor-model-parallel-size 2 "
             "--sequence-parallel --num-attention-heads 4"},
        // Counts of stage 0. Each in-flight slot is recorded; the slot of a step's first
        // micro-batch is recorded twice if other micro-batches use it too.
        Case{"Pipeline", "--pipeline-model-parallel-size 2 --global-batch-size 5", 3, 20},
        Case{"PipelineThroughHostMemory",
             kLlama + "--bf16 --pipeline-model-parallel-size 2 --global-batch-size 5 "
                      "--distributed-backend gloo --no-overlap-p2p-communication "
                      "--recompute-granularity selective --recompute-modules core_attn mlp",
             3, 20},
        // Stage 0 has no backward: its graphs of it are empty.
        Case{"PipelineFrozen",
             kLlama + "--pipeline-model-parallel-size 2 --global-batch-size 5 "
                      "--freeze *embed* *layers.0.*",
             3, 20},
        // Some slots are used by micro-batches of both chunks.
        Case{"Interleaved",
             "--num-layers 4 --pipeline-model-parallel-size 2 "
             "--num-layers-per-virtual-pipeline-stage 1 --global-batch-size 4",
             7, 32},
        // Sums that begin in one part are waited for in the other.
        Case{"PipelineAndTensor",
             "--ranks 4 --pipeline-model-parallel-size 2 --tensor-model-parallel-size 2 "
             "--sequence-parallel --global-batch-size 3 --bf16",
             3, 12},
        Case{"PipelineAndData",
             "--ranks 4 --pipeline-model-parallel-size 2 --global-batch-size 8 "
             "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
             2, 8}),
    [](const auto& info) { return info.param.name; });

// If an evaluation or a sample keeps memory that a graph uses, the graph is recorded again.
TEST(CudaGraphsBeside, EvaluationsHaveTheBits) {
  const Workplace place;
  const std::string flags = kSmall + "--eval-interval 3 --eval-iters 1 ";
  const std::vector<Step> eager = train(place, "cuda", 6, flags);
  std::string printed;
  EXPECT_EQ(train(place, "cuda", 6, flags + kRecorded, &printed), eager);
  EXPECT_EQ(counts_in(printed).launched, 8) << printed;
}

// The in-flight micro-batches of pipelines have their own memory.
TEST(CudaGraphsBeside, EvaluationsOfPipelinesHaveNothingRecordedAnew) {
  const Workplace place;
  const std::string flags =
      kSmall + "--eval-interval 2 --eval-iters 1 --pipeline-model-parallel-size 2 ";
  const std::vector<Step> eager = train(place, "cuda", 6, flags);
  std::string printed;
  EXPECT_EQ(train(place, "cuda", 6, flags + kRecorded, &printed), eager);
  EXPECT_EQ(counts_in(printed).recorded, 2) << printed;
  EXPECT_EQ(counts_in(printed).launched, 8) << printed;
}

TEST(CudaGraphsBeside, AResumedRunHasTheBits) {
  const Workplace place;
  const std::string flags = kSmall + kRecorded;
  const std::vector<Step> whole = train(place, "cuda", 6, flags);
  const std::string saved = flags + " --save run --load run --save-interval 3";
  std::vector<Step> parts = train(place, "cuda", 3, saved);
  for (const Step& step : train(place, "cuda", 6, saved)) parts.push_back(step);
  EXPECT_EQ(parts, whole);
}

// Nothing is replayed while a profile is written, or if there are too few steps.
TEST(CudaGraphsBeside, AProfiledStepIsMadeAsEver) {
  const Workplace place;
  std::string printed;
  train(
      place, "cuda", 4,
      kSmall + kRecorded + " --profile --profile-step-start 2 --profile-step-end 3 --profile-dir t",
      &printed);
  EXPECT_EQ(counts_in(printed).launched, 2) << printed;
}

TEST(CudaGraphsRefused, ByNameBeforeStep0) {
  const Workplace place;
  const auto refused = [&](const std::string& flags, const std::vector<std::string>& words_of_it) {
    const Outcome r = place.run(
        with({"train", "--device", "cuda", "--train-iters", "1"}, words(kModel + kSmall + flags)));
    EXPECT_EQ(r.code, 2) << r.out << r.err;
    for (const std::string& word : words_of_it)
      EXPECT_NE(r.err.find(word), std::string::npos) << flags << "\n" << r.err;
  };
  const std::string local = "--cuda-graph-impl local ";
  refused(local + "--tensor-model-parallel-size 2 --distributed-backend gloo",
          {"tensor-parallel", "host memory"});
  refused(local + "--context-parallel-size 2 --distributed-backend gloo",
          {"context-parallel", "host memory"});
  refused(local + "--pipeline-model-parallel-size 2 --pipeline-schedule zb-h1",
          {"--pipeline-schedule zb-h1", "use 1f1b or interleaved"});
  refused(local + "--ranks 2 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
          {"optim_grads", "use optim"});
  refused(local + "--cpu-offloading-num-layers 1", {"--cpu-offloading-num-layers 1"});
  refused(local + "--num-experts 4 --ranks 2 --expert-model-parallel-size 2",
          {"--expert-model-parallel-size 2", "use --cuda-graph-impl none"});
  refused("--cuda-graph-impl transformer_engine", {"transformer_engine", "use local"});
  refused("--external-cuda-graph", {"transformer_engine", "use local"});
  refused("--cuda-graph-impl full_iteration", {"full_iteration", "use local"});
}

}  // namespace
}  // namespace megatron::testing
