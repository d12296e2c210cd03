// Runs of tasks need what their plans say: memory of every class and traffic, with objectives,
// score heads, packed rows and reference models.
#include <gtest/gtest.h>

#include "dist/training/executed_run.h"
#include "dist/training/runs.h"
#include "post_training/tasks.h"

namespace megatron::training {
namespace {

SettledRun run_of(const std::string& task, const std::string& flags) {
  settings::TrainSettings given = with_flags(deep_llama(), flags + " --task " + task);
  given.data.mock_data = false;
  return settle_run(given, post_training::make_task(given.data));
}

void expect_executed(const SettledRun& run) {
  settings::TrainSettings settled = run.settings;
  const plan::Plan plan =
      make_plan(settled, run.model, run.vocabulary, {.task = run.task, .samples = false});
  expect_planned(plan, executed(run, 2));
}

TEST(TaskPlan, IsWhatIsExecuted) {
  for (const std::string task :
       {"sft", "dpo", "dpo --precompute-reference", "reward", "classify --labels no yes perhaps"}) {
    for (const std::string layout :
         {"", "--bf16", "--tensor-model-parallel-size 2 --sequence-parallel",
          "--pipeline-model-parallel-size 2 --use-distributed-optimizer --ranks 4",
          "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
          "--global-batch-size 16",
          "--ranks 2 --data-parallel-sharding-strategy optim_grads_params",
          "--context-parallel-size 2", "--freeze *mlp*"}) {
      SCOPED_TRACE(task + " " + layout);
      expect_executed(run_of(task, layout));
    }
  }
}

TEST(TaskPlan, OfEncodersIsWhatIsExecuted) {
  const std::string bert = std::string(MEGATRON_GOLDEN) + "/hf/bert/config.json";
  for (const std::string task :
       {"classify --labels a b", "token-classification --labels O B-X I-X", "question-answering"}) {
    for (const std::string layout :
         {"", "--tensor-model-parallel-size 2 --sequence-parallel", "--context-parallel-size 2"}) {
      SCOPED_TRACE(task + " " + layout);
      const settings::TrainSettings given = with_flags(
          {}, "--model-config " + bert + " --seq-length 16 --micro-batch-size 2 --train-iters 4 " +
                  "--global-batch-size 4 --lr 1e-3 --threads 1 " + layout + " --task " + task);
      expect_executed(settle_run(given, post_training::make_task(given.data)));
    }
  }
}

// Both texts, and what stages send each other inside of the encoder, the decoder and between them.
TEST(TaskPlan, OfEncoderDecodersIsWhatIsExecuted) {
  const std::string t5 = std::string(MEGATRON_GOLDEN) + "/t5/hf/t5/config.json",
                    own =
                        "--vocab-size 64 --hidden-size 32 --num-attention-heads 4 --num-layers 2 "
                        "--max-position-embeddings 16 ";
  for (const std::string task : {"span-corruption", "seq2seq"}) {
    for (const std::string layout :
         {"",
          "--bf16 --recompute-granularity full --recompute-method uniform "
          "--recompute-num-layers 1",
          "--tensor-model-parallel-size 2 --sequence-parallel", "--pipeline-model-parallel-size 2",
          "--pipeline-model-parallel-size 4 --global-batch-size 16", "--context-parallel-size 2",
          "--ranks 2 --data-parallel-sharding-strategy optim_grads_params",
          "--freeze encoder.block.*"}) {
      const bool stages = layout.find("pipeline") != layout.npos,
                 by_flags = stages || (task == "seq2seq" && !layout.starts_with("--freeze"));
      const std::string model =
          !by_flags ? "--model-config " + t5 + " "
                    : own + (task == "seq2seq" ? "" : "--position-embedding-type relative ");
      SCOPED_TRACE(task + " " + layout);
      settings::TrainSettings given =
          with_flags({}, model + "--seq-length 16 --decoder-seq-length 8 --micro-batch-size 2 " +
                             "--train-iters 4 --global-batch-size 4 --lr 1e-3 --threads 1 " +
                             layout + " --task " + task);
      given.settle_task();
      expect_executed(settle_run(given, post_training::make_task(given.data)));
    }
  }
}

// A second model is in memory only if it runs in the steps.
TEST(TaskPlan, CountsTheReferenceModel) {
  const auto plan_of = [](const std::string& flags) {
    const SettledRun run = run_of("dpo", flags);
    settings::TrainSettings settled = run.settings;
    return make_plan(settled, run.model, run.vocabulary, {.task = run.task, .samples = false});
  };
  const auto bytes = [](const plan::Plan& plan, MemoryClass c) {
    return plan.memory.arenas[static_cast<size_t>(c)];
  };
  const auto flops = [](const plan::Plan& plan) {
    double sum = 0;
    for (const plan::KernelWork& work : plan.kernels) sum += work.cost.flops;
    return sum;
  };
  const plan::Plan with = plan_of(""), without = plan_of("--reference-free"),
                   before = plan_of("--precompute-reference");
  EXPECT_EQ(bytes(with, MemoryClass::parameters), 2 * bytes(without, MemoryClass::parameters));
  EXPECT_EQ(bytes(before, MemoryClass::parameters), bytes(without, MemoryClass::parameters));
  EXPECT_EQ(bytes(with, MemoryClass::gradients), bytes(without, MemoryClass::gradients));
  EXPECT_EQ(bytes(with, MemoryClass::optimizer), bytes(without, MemoryClass::optimizer));
  EXPECT_GT(flops(with), 1.2 * flops(without));
  EXPECT_TRUE(with.reference && !without.reference && !before.reference);
  EXPECT_EQ(flops(before), flops(without));
}

}  // namespace
}  // namespace megatron::training
