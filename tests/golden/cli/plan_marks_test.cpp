// `megatron plan` predicts exactly, class by class, what the run's arenas then hold.
#include <algorithm>
#include <filesystem>
#include <map>

#include "base/json.h"
#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

const char* const kGpt =
    "--mock-data --vocab-size 97 --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
    "--seq-length 32 --max-position-embeddings 32 --micro-batch-size 2 --train-iters 5 ";
const char* const kLlama =
    "--mock-data --vocab-size 1000 --num-layers 3 --hidden-size 48 --num-attention-heads 4 "
    "--group-query-attention --num-query-groups 2 --ffn-hidden-size 96 --swiglu --normalization "
    "RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 --seq-length "
    "40 --max-position-embeddings 64 --micro-batch-size 1 --train-iters 5 ";

struct Marks {
  std::map<std::string, int64_t> classes;
  int64_t process = 0;
};

class PlanMarks : public ::testing::Test {
 protected:
  Marks planned(const std::string& flags) {
    const Outcome r = place_.run(with({"plan", "--json", "--no-time"}, words(flags)));
    EXPECT_EQ(r.code, 0) << r.err;
    const Json plan = Json::parse(r.out);
    EXPECT_TRUE(plan["memory"]["exact"].as_bool());
    Marks marks{.process = plan["memory"]["process"].as_integer()};
    for (const auto& [name, bytes] : plan["memory"]["rank"].as_object())
      if (name != "host" && name != "total") marks.classes[name] = bytes.as_integer();
    return marks;
  }

  Marks shown(const std::string& flags) {
    const std::string log = place_ / "log.jsonl";
    std::filesystem::remove(log);
    const Outcome r = place_.run(with(with({"train"}, words(flags)),
                                      {"--lr", "1e-3", "--log-interval", "1", "--log-jsonl", log}));
    EXPECT_EQ(r.code, 0) << r.err;
    std::istringstream lines(read_file(log));
    Marks marks;
    for (std::string line; std::getline(lines, line);) {
      const Json record = Json::parse(line);
      if (record["type"].as_string() != "step") continue;
      for (const auto& [name, bytes] : record["memory"].as_object()) {
        if (name != "process") marks.classes[name] = bytes.as_integer();
        // After the last step a rank may already have returned its memory.
        else marks.process = std::max(marks.process, bytes.as_integer());
      }
    }
    return marks;
  }

  void expect_equal(const std::string& model, const std::string& flags) {
    const Marks plan = planned(model + flags), run = shown(model + flags);
    EXPECT_EQ(plan.classes, run.classes) << flags;
    EXPECT_EQ(plan.classes.size(), flags.find("offload") == flags.npos ? 6u : 7u);
    EXPECT_GT(plan.classes.at("scratch"), 0);
  }

  Workplace place_;
};

const char* const kDeep =
    "--mock-data --vocab-size 97 --num-layers 4 --hidden-size 32 --num-attention-heads 4 "
    "--seq-length 32 --max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 16 "
    "--train-iters 3 --distributed-timeout-minutes 3 ";

const char* const kReal =
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 16 --train-iters 3 "
    "--data-cache-path cache --data-path " MEGATRON_GOLDEN
    "/indexed/preprocess/bpe2k_eod_text_document ";

// Steps of so many micro-batches that holes between tensors grow for hundreds of them.
const char* const kLong =
    "--mock-data --vocab-size 97 --num-layers 4 --hidden-size 32 --num-attention-heads 4 "
    "--seq-length 32 --max-position-embeddings 32 --micro-batch-size 2 --train-iters 4 "
    "--distributed-timeout-minutes 3 --pipeline-model-parallel-size 2 ";

struct Case {
  std::string name, model, flags;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.flags; }

// Runs each case in a test of its own, so that none takes long.
class Cases {
 public:
  Cases() {
    gpts();
    ranks();
    tensor_ranks();
    stages();
    long_steps();
    sharded_replicas();
    recompute_and_offload();
    with_evaluations();
    samples();
    whole_validation_set();
    optimizers();
    llamas();
    experts();
  }
  std::vector<Case> take() { return std::move(all_); }

 private:
  void gpts() {
    begin("Gpts");
    for (const char* flags :
         {"", "--bf16", "--recompute-granularity full",
          "--hidden-dropout 0.1 --attention-dropout 0.1",
          "--hidden-dropout 0 --attention-dropout 0 --bf16 --recompute-activations",
          "--untie-embeddings-and-output-weights", "--global-batch-size 8",
          "--global-batch-size 14 --bf16", "--threads 1", "--threads 3 --bf16",
          "--reset-attention-mask --reset-position-ids",
          "--global-batch-size 8 --rampup-batch-size 2 2 12",
          "--no-calculate-per-token-loss --global-batch-size 6", "--fp16"})
      add(kGpt, flags);
  }
  void ranks() {
    begin("Ranks");
    for (const char* flags : {"--ranks 2 --global-batch-size 12", "--ranks 3 --threads 2",
                              "--eval-interval 1 --eval-iters 3 --ranks 2 --global-batch-size 8"})
      add(kGpt, flags);
    add(kLlama, "--global-batch-size 3 --ranks 3");
  }
  void tensor_ranks() {
    begin("TensorRanks");
    for (const char* flags :
         {"", "--bf16", "--sequence-parallel", "--sequence-parallel --bf16 --ranks 4",
          "--sequence-parallel --eval-interval 1 --eval-iters 3",
          "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2 "
          "--distribute-saved-activations"})
      add(kDeep, std::string("--tensor-model-parallel-size 2 ") + flags);
  }
  void stages() {
    begin("Stages");
    for (const char* flags :
         {"", "--bf16 --no-overlap-p2p-communication", "--num-virtual-stages-per-pipeline-rank 2",
          "--pipeline-schedule zb-h1", "--pipeline-schedule zb-v",
          "--pipeline-schedule zb-v --untie-embeddings-and-output-weights --bf16",
          "--decoder-first-pipeline-num-layers 1", "--eval-interval 1 --eval-iters 3",
          "--bf16 --log-params-norm",
          "--num-virtual-stages-per-pipeline-rank 2 --eval-interval 1 --eval-iters 3",
          "--tensor-model-parallel-size 2 --sequence-parallel"})
      add(kDeep, std::string("--pipeline-model-parallel-size 2 ") + flags);
    add(kDeep, "--pipeline-model-parallel-size 4 --pipeline-schedule zb-h1");
    add(kDeep,
        "--position-embedding-type rope --mtp-num-layers 2 --mtp-detach-heads --eval-interval 1 "
        "--eval-iters 3 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout "
        "Ett|tt|mm|L");
  }
  void long_steps() {
    begin("LongSteps");
    for (const char* flags :
         {"--global-batch-size 130 --train-iters 2 --eval-interval 2 --eval-iters 40 "
          "--pipeline-schedule zb-v",
          "--global-batch-size 128", "--global-batch-size 130", "--global-batch-size 260",
          "--global-batch-size 260 --train-iters 1", "--global-batch-size 260 --bf16",
          "--global-batch-size 260 --pipeline-schedule zb-v",
          "--global-batch-size 130 --pipeline-schedule zb-h1 --bf16",
          "--global-batch-size 132 --num-virtual-stages-per-pipeline-rank 2",
          "--global-batch-size 132 --recompute-granularity full --eval-interval 2 --eval-iters 2",
          "--global-batch-size 260 --tensor-model-parallel-size 2 --sequence-parallel",
          "--global-batch-size 260 --ranks 4 --data-parallel-sharding-strategy "
          "optim_grads_params",
          "--global-batch-size 132 --rampup-batch-size 12 40 512",
          "--global-batch-size 24 --rampup-batch-size 2 2 60 --train-iters 14",
          "--step-batch-size-schedule 0:132,8448:12 --train-iters 6",
          "--global-batch-size 130 --pipeline-model-parallel-size 4 --eval-interval 3 "
          "--eval-iters 40",
          "--global-batch-size 132 --num-virtual-stages-per-pipeline-rank 2 "
          "--microbatch-group-size-per-virtual-pipeline-stage 3",
          "--global-batch-size 130 --cpu-offloading-num-layers 1"})
      add(kLong, flags);
  }
  void sharded_replicas() {
    begin("ShardedReplicas");
    for (const char* flags :
         {"--use-distributed-optimizer", "--use-distributed-optimizer --bf16",
          "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
          "--ddp-bucket-size 9000",
          "--data-parallel-sharding-strategy optim_grads",
          "--data-parallel-sharding-strategy optim_grads --overlap-grad-reduce",
          "--data-parallel-sharding-strategy optim_grads_params",
          "--data-parallel-sharding-strategy optim_grads_params --bf16 --eval-interval 1 "
          "--eval-iters 3",
          "--data-parallel-sharding-strategy optim_grads_params --overlap-grad-reduce "
          "--overlap-param-gather",
          "--data-parallel-sharding-strategy optim_grads_params --recompute-granularity full "
          "--recompute-method uniform --recompute-num-layers 1"})
      add(kDeep, std::string("--ranks 2 ") + flags);
    add(kDeep, "--ranks 4 --use-distributed-optimizer --num-distributed-optimizer-instances 2");
    add(kDeep, "--ranks 4 --pipeline-model-parallel-size 2 --use-distributed-optimizer");
  }
  void recompute_and_offload() {
    begin("RecomputeAndOffload");
    for (const char* flags :
         {"--recompute-granularity selective --recompute-modules core_attn mlp layernorm",
          "--recompute-granularity selective --recompute-modules mlp --bf16",
          "--recompute-granularity selective --recompute-modules mlp_act layernorm",
          "--recompute-granularity selective --recompute-modules mlp_act layernorm --swiglu --bf16 "
          "--pipeline-model-parallel-size 2 --pipeline-schedule zb-h1",
          "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
          "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2 --bf16",
          "--cpu-offloading-num-layers 2", "--cpu-offloading-num-layers 1 --bf16",
          "--optimizer-cpu-offload", "--optimizer-cpu-offload --optimizer-offload-fraction 0.5",
          "--optimizer-cpu-offload --cpu-offloading-num-layers 1 --pipeline-model-parallel-size 2",
          "--optimizer-cpu-offload --ranks 2 --use-distributed-optimizer --bf16"})
      add(kDeep, flags);
  }
  void with_evaluations() {
    begin("WithEvaluations");
    for (const char* flags :
         {"--eval-interval 2 --eval-iters 5",
          "--eval-interval 2 --eval-iters 3 --eval-global-batch-size 24 --eval-micro-batch-size 8 "
          "--recompute-granularity full"})
      add(kGpt, flags);
  }
  // Text samples that the model writes; the first rank of any layout gathers the model for them.
  void samples() {
    begin("Samples");
    const std::string more =
        std::string("--tokenizer-model ") + MEGATRON_GOLDEN +
        "/indexed/preprocess/tokenizer_bpe2k --split 1,0,0 --sample-interval 1 "
        "--sample-prompt The --sample-tokens 9 ";
    for (const char* flags :
         {"", "--bf16", "--ranks 2 --data-parallel-sharding-strategy optim_grads_params",
          "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2 --bf16",
          "--pipeline-model-parallel-size 2 --global-batch-size 96 --sample-interval 2"})
      add(kReal, more + flags);
  }
  // The plan holds for any number of samples in the set, because it opens no data.
  void whole_validation_set() {
    begin("WholeValidationSet");
    const std::string whole =
        "--vocab-size 2500 --split 90,10,0 --full-validation --eval-interval 1 ";
    add(kReal, whole);
    add(kReal, whole + "--pipeline-model-parallel-size 2");
    // The interval is longer than the run and there is no test set, so it never evaluates.
    add(kReal, whole + "--eval-interval 9 --eval-iters 0 --pipeline-model-parallel-size 2");
    add(kGpt, "--eval-interval 1 --eval-iters 40");
    add(kGpt, "--bf16 --log-params-norm");
  }
  void optimizers() {
    begin("Optimizers");
    for (const char* flags :
         {"--optimizer sgd --sgd-momentum 0", "--optimizer sgd --sgd-momentum 0.9 --bf16",
          "--optimizer lion --bf16", "--bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8"})
      add(kGpt, flags);
    add(kLlama, "--optimizer muon");
  }
  void llamas() {
    begin("Llamas");
    for (const char* flags :
         {"", "--bf16 --global-batch-size 5", "--recompute-granularity full --bf16",
          "--bf16 --reset-attention-mask --global-batch-size 4", "--clip-grad 0", "--fp16",
          "--seq-length 700 --max-position-embeddings 700"})
      add(kLlama, flags);
  }
  // With a padded capacity experts have the same number of rows, whatever the router chooses.
  void experts() {
    begin("Experts");
    for (const char* flags :
         {"", "--overlap-moe-expert-parallel-comm", "--overlap-moe-expert-parallel-comm --bf16",
          "--overlap-moe-expert-parallel-comm --global-batch-size 132 --eval-interval 2 "
          "--eval-iters 3",
          "--overlap-moe-expert-parallel-comm --ranks 4 --pipeline-model-parallel-size 2 "
          "--global-batch-size 72",
          "--overlap-moe-expert-parallel-comm --ranks 4 --pipeline-model-parallel-size 2 "
          "--num-virtual-stages-per-pipeline-rank 2"})
      add(kDeep, std::string("--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 32 "
                             "--moe-layer-freq 2 --moe-expert-capacity-factor 1 "
                             "--moe-pad-expert-input-to-capacity --ranks 2 "
                             "--expert-model-parallel-size 2 ") +
                     flags);
  }
  void begin(const std::string& group) {
    group_ = group;
    number_ = 0;
  }
  void add(const std::string& model, const std::string& flags) {
    all_.push_back({group_ + std::to_string(number_++), model, flags});
  }

  std::string group_;
  int number_ = 0;
  std::vector<Case> all_;
};

class PlanMarksOf : public PlanMarks, public ::testing::WithParamInterface<Case> {};

TEST_P(PlanMarksOf, APlanAreThoseOfTheRun) { expect_equal(GetParam().model, GetParam().flags); }

INSTANTIATE_TEST_SUITE_P(Runs, PlanMarksOf, ::testing::ValuesIn(Cases().take()),
                         [](const auto& info) { return info.param.name; });

// Uses models of several hundred megabytes, so that the program's own memory is negligible.
class PlanOfAProcess : public PlanMarks, public ::testing::WithParamInterface<const char*> {};

TEST_P(PlanOfAProcess, IsWithinATenthAndAHundredMegabytes) {
  const std::string large =
      "--mock-data --vocab-size 20000 --num-layers 2 --hidden-size 768 --num-attention-heads 12 "
      "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 2 --train-iters 2 ";
  const Marks plan = planned(large + GetParam()), run = shown(large + GetParam());
  EXPECT_GT(plan.process, int64_t{300} << 20);
  EXPECT_NEAR(static_cast<double>(plan.process), static_cast<double>(run.process),
              0.1 * static_cast<double>(run.process) + 100e6);
}

INSTANTIATE_TEST_SUITE_P(
    Large, PlanOfAProcess,
    ::testing::Values("", "--bf16 --ranks 2", "--recompute-granularity full",
                      "--tensor-model-parallel-size 2 --sequence-parallel",
                      "--ranks 2 --data-parallel-sharding-strategy optim_grads_params --bf16",
                      "--swiglu --normalization RMSNorm --position-embedding-type rope "
                      "--disable-bias-linear --untie-embeddings-and-output-weights "
                      "--group-query-attention --num-query-groups 4"));

}  // namespace
}  // namespace megatron::testing
