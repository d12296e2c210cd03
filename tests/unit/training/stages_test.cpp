// Each stage of settings alone: its result, and its notes.
#include <gtest/gtest.h>

#include "base/error.h"
#include "text.h"
#include "training/settle.h"
#include "unit/training/small_settings.h"

namespace megatron::training {
namespace {

// Lines of the form "flag value: cause".
std::string told(const Settled& settled) {
  std::string text;
  for (const SettingNote& note : settled.notes)
    text += fmt::format("{} {}: {}\n", note.flag, note.value, note.cause);
  return text;
}

TEST(Stages, SayNothingOfWhatTheyLeave) {
  const settings::TrainSettings s = small_settings();
  EXPECT_EQ(told(take_dense_model(s)), "");
  EXPECT_EQ(told(leave_out_evaluation(s)), "");
  EXPECT_EQ(told(take_pretrained(s, false)), "");
  EXPECT_EQ(told(take_tokenizer(s, "")), "");
}

TEST(Stages, ADenseModelIsThatOfLoad) {
  settings::TrainSettings s = small_settings();
  s.checkpoint.upcycle = s.checkpoint.use_checkpoint_args = true;
  s.checkpoint.load_rng = false;
  s.checkpoint.load = "dense";
  Settled settled = take_dense_model(s);
  EXPECT_EQ(told(settled), "model dense: --moe-use-upcycling with --load\n");
  EXPECT_EQ(settled.settings.run.model, "dense");
  EXPECT_FALSE(settled.settings.checkpoint.load);
  EXPECT_FALSE(settled.settings.checkpoint.use_checkpoint_args) << "there is nothing to resume";
  EXPECT_TRUE(settled.settings.checkpoint.load_rng);
  s.checkpoint.pretrained_checkpoint = "other";
  settled = take_dense_model(s);
  EXPECT_EQ(told(settled), "model other: --moe-use-upcycling with --pretrained-checkpoint\n");
  EXPECT_EQ(settled.settings.checkpoint.load, "dense");
  EXPECT_FALSE(settled.settings.checkpoint.load_rng) << "--load may have a checkpoint";
  s.run.model = "given";
  EXPECT_EQ(take_dense_model(s).settings.run.model, "given");
}

TEST(Stages, EvaluationOfNoBatchesIsNone) {
  settings::TrainSettings s = small_settings();
  s.run.eval_interval = 5;
  s.run.start_eval_at_iter = 10;
  EXPECT_EQ(leave_out_evaluation(s).settings.run.eval_interval, 5);
  s.run.eval_iters = 0;
  const Settled none = leave_out_evaluation(s);
  EXPECT_EQ(told(none), "eval-interval none: --eval-iters 0: no evaluation\n");
  EXPECT_FALSE(none.settings.run.eval_interval || none.settings.run.start_eval_at_iter);
  s.run.full_validation = true;
  EXPECT_EQ(leave_out_evaluation(s).settings.run.eval_interval, 5);
}

TEST(Stages, SharesOfAHybridPlaceItsLayers) {
  settings::TrainSettings s = small_settings();
  EXPECT_EQ(told(allocate_layers(s)), "") << "no hybrid";
  s.shape.num_layers = 4;
  s.shape.hybrid_mlp_ratio = 0.5;
  const Settled allocated = allocate_layers(s);
  EXPECT_EQ(told(allocated),
            "hybrid-layer-pattern M-M-: 4 layers, --hybrid-attention-ratio 0, --hybrid-mlp-ratio "
            "0.5\n");
  EXPECT_EQ(told(allocate_layers(allocated.settings)), "") << "again";
  s.shape.hybrid_layer_pattern = "M*";
  EXPECT_EQ(allocate_layers(s).settings.shape.hybrid_layer_pattern, "M*");
}

TEST(Stages, BarsOfAHybridPatternPlaceItsLayers) {
  settings::TrainSettings s = small_settings();
  s.shape.hybrid_layer_pattern = "M-M";
  EXPECT_EQ(told(place_by_pattern(s)), "") << "no bars";
  s.shape.hybrid_layer_pattern = "M-|M";
  expect_contains(error_of([&] { place_by_pattern(s); }),
                  {"'M-|M'", "--pipeline-model-parallel-size is 1"});
  s.parallel.pipeline_parallel = 2;
  const Settled placed = place_by_pattern(s);
  EXPECT_EQ(told(placed),
            "pipeline-model-parallel-layout Ett|tL: the bars of --hybrid-layer-pattern\n");
  EXPECT_EQ(told(place_by_pattern(placed.settings)), "") << "again";
  s.parallel.layout = "Et|ttL";
  expect_contains(error_of([&] { place_by_pattern(s); }), {"'M-|M'", "'Et|ttL'"});
}

TEST(Stages, RanksAreTheLeastThatSizesNeed) {
  settings::TrainSettings s = small_settings();
  EXPECT_EQ(told(count_ranks(s)), "") << "one";
  s.parallel.tensor_parallel = s.parallel.pipeline_parallel = 2;
  const Settled four = count_ranks(s);
  EXPECT_EQ(four.settings.runtime.rank_count(), 4);
  EXPECT_EQ(told(four), "ranks 4: the minimum for the parallel sizes\n");
  s.runtime.ranks = 8;
  EXPECT_EQ(told(count_ranks(s)), "");
  s.runtime.launched_by = "torchrun";
  EXPECT_EQ(told(count_ranks(s)), "ranks 8: torchrun\n");
  s.runtime.ranks = 6;
  EXPECT_THROW(count_ranks(s), Error);
}

TEST(Stages, BatchesFollowFromRanks) {
  settings::TrainSettings s = small_settings();
  s.runtime.ranks = 4;
  s.batch.train_samples = 50;
  const Settled eight = count_batches(s);
  EXPECT_EQ(told(eight),
            "global-batch-size 8: micro-batch size 2 x 4 ranks\ntrain-iters 6: whole steps in "
            "--train-samples 50\n");
  EXPECT_EQ(*eight.settings.batch.global_batch_size, 8);
  EXPECT_EQ(eight.settings.batch.schedule.micro_batches(0), 1);
  s.batch.train_samples.reset();
  s.batch.train_iters = 3;
  s.batch.global_batch_size = 19;
  s.batch.decrease_batch_size = true;
  EXPECT_EQ(told(count_batches(s)),
            "global-batch-size 16: --decrease-batch-size-if-needed: 19 is not a multiple of "
            "micro-batch size 2 x 4 ranks\n");
  s.batch.global_batch_size = 16;
  EXPECT_EQ(told(count_batches(s)), "");
}

TEST(Stages, EpochsAreStepsOnceTheRowsAreKnown) {
  settings::TrainSettings s = small_settings();
  s.data.task = "sft";
  s.batch.train_iters.reset();
  s.batch.epochs = 3;
  s.batch.global_batch_size = 8;
  EXPECT_EQ(told(count_batches(s)), "");
  s = count_batches(s).settings;
  const Settled counted = count_epochs(s, 21);
  EXPECT_EQ(told(counted),
            "train-iters 8: --epochs 3: 21 rows / 8 a step = 2.625 steps per epoch\n");
  EXPECT_EQ(*counted.settings.batch.train_iters, 8);
  EXPECT_EQ(counted.settings.batch.base_samples(), 64);
  EXPECT_EQ(*count_epochs(s, 16).settings.batch.train_iters, 6) << "whole steps need no more";
  EXPECT_EQ(*count_epochs(s, 1).settings.batch.train_iters, 1);
  EXPECT_THROW(count_epochs(s, int64_t{1} << 40), Error);
  EXPECT_THROW(settle_planned(s), Error) << "a plan reads no data";
}

TEST(Stages, APretrainedCheckpointIsLoadedOnce) {
  settings::TrainSettings s = small_settings();
  s.checkpoint.pretrained_checkpoint = "before";
  s.checkpoint.load = "run";
  EXPECT_EQ(told(take_pretrained(s, true)), "");
  EXPECT_EQ(take_pretrained(s, true).settings.checkpoint.load, "run");
  const Settled first = take_pretrained(s, false);
  EXPECT_EQ(told(first),
            "load before: --pretrained-checkpoint: run has no checkpoint yet\nfinetune true: "
            "--pretrained-checkpoint\n");
  EXPECT_EQ(first.settings.checkpoint.load, "before");
  EXPECT_TRUE(first.settings.checkpoint.finetune);
}

TEST(Stages, PassOneAfterAnother) {
  settings::TrainSettings s = small_settings();
  s.parallel.pipeline_parallel = 2;
  s.batch.train_iters = 1;
  s.run.eval_interval = 1;
  s.run.eval_iters = 0;
  Settled settled{s};
  settled.pass(leave_out_evaluation);
  settled.pass(count_ranks);
  settled.pass(count_batches);
  EXPECT_EQ(told(settled),
            "eval-interval none: --eval-iters 0: no evaluation\nranks 2: the minimum for the "
            "parallel sizes\nglobal-batch-size 2: micro-batch size 2 x 1 rank\n");
}

// Settings about experts have no effect on a model without experts.
TEST(Stages, DivisionLeavesOutWhatTheModelDoesNotHave) {
  settings::TrainSettings s = small_settings();
  s.batch.train_iters = 1;
  s.parallel.overlap_experts = s.parallel.overlap_shared_expert = true;
  s = settle(s).settings;
  const models::Model model = models::model_from_flags(s.shape, 16);
  const Settled divided = divide(s, model);
  EXPECT_FALSE(divided.settings.parallel.overlap_experts);
  EXPECT_EQ(told(divided),
            "overlap-moe-expert-parallel-comm none: the model has no experts\n"
            "moe-shared-expert-overlap none: the model has no experts\n");
}

}  // namespace
}  // namespace megatron::training
