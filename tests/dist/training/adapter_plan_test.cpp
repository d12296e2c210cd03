// Runs that train adapters need what their plans say: memory of every class and traffic.
#include "dist/training/executed_run.h"
#include "dist/training/runs.h"

namespace megatron::training::adapter_plan_test {
namespace {

TEST(AdapterPlan, IsWhatIsExecuted) {
  for (const std::string layout :
       {"", "--bf16 --fp8-format hybrid", "--tensor-model-parallel-size 2 --sequence-parallel",
        "--pipeline-model-parallel-size 2",
        "--pipeline-model-parallel-size 2 --pipeline-schedule zb-v",
        "--ranks 2 --data-parallel-sharding-strategy optim_grads_params",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"}) {
    for (const std::string adapter :
         {"--lora-rank 4 --lora-token-indices 3-5 60", "--lora-rank 4 --lora-dropout 0.1",
          "--lora-rank 4 --lora-dropout 0.1 --use-dora --lora-target up_proj o_proj",
          "--lora-rank 2 --lora-target q_proj down_proj --lora-rank-pattern down_proj=3 "
          "--lora-alpha 3 --lora-modules-to-save lm_head"}) {
      SCOPED_TRACE(layout + " " + adapter);
      const SettledRun run = settle_run(with_flags(deep_llama(), layout + " " + adapter));
      settings::TrainSettings settled = run.settings;
      const plan::Plan plan = make_plan(settled, run.model, run.vocabulary, {});
      expect_planned(plan, executed(run, 2));
      EXPECT_LT(*plan.trained, plan.parameter_count());
    }
  }
}

}  // namespace
}  // namespace megatron::training::adapter_plan_test
