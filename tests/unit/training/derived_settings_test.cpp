// Each setting that was not given is logged with its cause.
#include "training/derived_settings.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "base/error.h"
#include "base/machine_limits.h"
#include "training/run_plan.h"
#include "unit/training/small_settings.h"

namespace megatron::training {
namespace {

settings::TrainSettings small() {
  settings::TrainSettings s = small_settings();
  s.batch.train_iters = 10;
  s.data.mock_data = true;
  s.runtime.ranks = 2;
  return s;
}

// Every flag's value and cause, "VALUE: CAUSE".
std::map<std::string, std::string> notes_of(const settings::TrainSettings& settings) {
  std::map<std::string, std::string> notes;
  for (const SettingNote& note : settle_run(settings).notes)
    notes[note.flag] = note.value + ": " + note.cause;
  return notes;
}

TEST(DerivedSettings, OfTheShape) {
  settings::TrainSettings s = small();
  auto notes = notes_of(s);
  EXPECT_EQ(notes["ffn-hidden-size"], "192: 4 x hidden size 48");
  EXPECT_EQ(notes["kv-channels"], "12: hidden size 48 / 4 heads");
  EXPECT_EQ(notes["num-query-groups"],
            "4: without --group-query-attention every head has its own keys and values");
  EXPECT_EQ(notes["max-position-embeddings"], "16: --seq-length");
  s.shape.swiglu = true;
  s.shape.num_query_groups = 2;
  notes = notes_of(s);
  EXPECT_EQ(notes["ffn-hidden-size"],
            "128: 8/3 x hidden size 48, rounded down to a multiple of 64");
  EXPECT_EQ(notes["num-query-groups"],
            "4: --num-query-groups 2 has no effect without --group-query-attention");
  s.shape.ffn_hidden_size = 64;
  s.shape.kv_channels = 12;
  s.shape.group_query_attention = true;
  s.shape.max_position_embeddings = 16;
  notes = notes_of(s);
  for (const char* given :
       {"ffn-hidden-size", "kv-channels", "num-query-groups", "max-position-embeddings", "threads"})
    EXPECT_FALSE(notes.contains(given)) << given;
}

TEST(DerivedSettings, OfDropoutsThatTheFamilyCannotHold) {
  settings::TrainSettings s = small();
  s.shape.hidden_dropout.reset();
  s.shape.attention_dropout.reset();
  EXPECT_FALSE(notes_of(s).contains("hidden-dropout")) << "GPT-2 has 0.1";
  s.shape.position_embedding = models::PositionEmbedding::rope;
  s.shape.normalization = nn::Normalization::rms_norm;
  s.shape.swiglu = true;
  s.shape.add_bias_linear = false;
  const auto notes = notes_of(s);
  EXPECT_EQ(
      notes.at("hidden-dropout"),
      "0: a config.json of type llama cannot represent this dropout; --model-family megatron can");
  EXPECT_FALSE(notes.contains("attention-dropout")) << "Llama has 0.1";
}

TEST(DerivedSettings, OfOverlapWithoutAnotherMicroBatch) {
  settings::TrainSettings s = small();
  s.shape.moe.num_experts = 4;
  s.parallel.expert_parallel = 2;
  s.parallel.overlap_experts = true;
  s.batch.micro_batch_size = 1;
  s.batch.global_batch_size = 4;
  EXPECT_FALSE(notes_of(s).contains("overlap-moe-expert-parallel-comm"));
  s.batch.global_batch_size = 2;
  EXPECT_EQ(
      notes_of(s)["overlap-moe-expert-parallel-comm"],
      "none: each step has only one micro-batch per rank, so there is nothing to overlap it with");
}

TEST(DerivedSettings, OfTheModelsDirectory) {
  settings::TrainSettings s = small();
  const std::string llama = std::string(MEGATRON_GOLDEN) + "/hf/llama";
  s.shape = {};
  s.run.model = llama;
  auto notes = notes_of(s);
  EXPECT_EQ(notes["model-config"],
            llama +
                ": 3 layers, hidden 48, feed-forward 88, 4 heads (2 key heads) of 12, "
                "vocabulary 160, 128 positions, rotary, untied");
  EXPECT_EQ(notes["hidden-dropout"], "0: config.json of " + llama);
  EXPECT_FALSE(notes.contains("init-method-std")) << "as flags have it";
  s.shape.hidden_dropout = 0.1;
  EXPECT_FALSE(notes_of(s).contains("hidden-dropout")) << "it was given";
}

TEST(DerivedSettings, OfFlagsThatACheckpointOverrides) {
  settings::TrainSettings given = small();
  given.shape = {};
  given.run.model = std::string(MEGATRON_GOLDEN) + "/hf/llama";
  SettledRun run = settle_run(given);
  run.settings.checkpoint.use_checkpoint_args = true;
  const auto overridden = [&] {
    for (const SettingNote& note : derived_settings({.given = given,
                                                     .settings = run.settings,
                                                     .model = run.model,
                                                     .vocabulary = run.vocabulary,
                                                     .shape_source = "run"}))
      if (note.flag == "use-checkpoint-args") return note.cause;
    return std::string();
  };
  EXPECT_EQ(overridden(), "");
  given.shape.swiglu = true;
  EXPECT_EQ(overridden(), "") << "so it is";
  given.shape.num_layers = 5;
  EXPECT_EQ(
      overridden(),
      "config.json of run overrides the given flags: num-layers 3 in the checkpoint and 5 now");
  given.shape.squared_relu = true;
  EXPECT_TRUE(overridden().ends_with("are mutually exclusive")) << overridden();
}

TEST(DerivedSettings, OfTheTokenizer) {
  settings::TrainSettings s = small();
  EXPECT_EQ(notes_of(s)["tokenizer-type"], "NullTokenizer: --tokenizer-model is not given");
  s.shape.vocab_size.reset();
  s.data.tokenizer_model = std::string(MEGATRON_GOLDEN) + "/tokenizers/trained/llama3";
  EXPECT_TRUE(notes_of(s)["vocab-size"].ends_with(": vocabulary size of the tokenizer"));
}

TEST(DerivedSettings, OfTheBatch) {
  settings::TrainSettings s = small();
  EXPECT_EQ(notes_of(s)["global-batch-size"], "4: micro-batch size 2 x 2 ranks");
  s.batch.global_batch_size = 7;
  s.batch.decrease_batch_size = true;
  EXPECT_EQ(notes_of(s)["global-batch-size"],
            "4: --decrease-batch-size-if-needed: 7 is not a multiple of micro-batch size 2 x 2 "
            "ranks");
  s.batch.global_batch_size.reset();
  s.batch.decrease_batch_size = false;
  s.batch.step_batch_size_schedule = "0:4 64:8";
  EXPECT_EQ(notes_of(s)["global-batch-size"],
            "8: the last one of --step-batch-size-schedule; also used for evaluations");
  s = small();
  s.batch.train_iters.reset();
  s.batch.train_samples = 22;
  EXPECT_EQ(notes_of(s)["train-iters"], "5: whole steps in --train-samples 22");
  s.recompute.activations = true;
  EXPECT_EQ(notes_of(s)["recompute-granularity"], "selective: --recompute-activations");
}

TEST(DerivedSettings, OfThreadsAndEvaluation) {
  settings::TrainSettings s = small();
  s.runtime.threads.reset();
  const MachineLimits limits = machine_limits();
  const std::string limit =
      limits.processors_limit.empty() ? "" : fmt::format(" ({})", limits.processors_limit);
  EXPECT_EQ(notes_of(s)["threads"],
            fmt::format("{}: {} cores{} / 2 ranks on this machine",
                        std::max(1, limits.processors / 2), limits.processors, limit));
  EXPECT_FALSE(notes_of(s).contains("eval-global-batch-size")) << "there is no evaluation";
  s.run.eval_interval = 5;
  EXPECT_EQ(notes_of(s)["eval-global-batch-size"], "4: same as in training");
  EXPECT_EQ(notes_of(s)["eval-micro-batch-size"], "2: same as in training");
  s.run.eval_iters = 0;
  s.run.start_eval_at_iter = 2;
  EXPECT_EQ(notes_of(s)["eval-interval"], "none: --eval-iters 0: no evaluation");
  EXPECT_FALSE(notes_of(s).contains("eval-global-batch-size"));
  EXPECT_FALSE(settle_run(s).settings.run.eval_interval.has_value());
  s.run.full_validation = true;
  EXPECT_FALSE(notes_of(s).contains("eval-interval")) << "the whole set, without --eval-iters";
  s.run.full_validation = false;
  s.run.skip_train = true;
  EXPECT_THROW(settle_run(s), Error) << "nothing would be done";
}

TEST(DerivedSettings, OfTheSchedule) {
  settings::TrainSettings s = small();
  EXPECT_EQ(notes_of(s)["lr-decay-iters"], "10: --train-iters");
  s.optimizer.lr_warmup_fraction = 0.25;
  EXPECT_EQ(notes_of(s)["lr-warmup-iters"], "2: 0.25 x 40 decay samples = 10 samples");
  EXPECT_FALSE(notes_of(s).contains("lr-warmup-samples")) << "a run by iterations refuses it";
  s.optimizer.weight_decay_increase = optim::DecayIncrease::linear;
  s.optimizer.start_weight_decay = 0;
  EXPECT_EQ(notes_of(s)["end-weight-decay"], "0.01: --weight-decay");
  s.optimizer.lr_decay_style = optim::DecayStyle::constant;
  EXPECT_FALSE(notes_of(s).contains("lr-decay-iters"));
  s.optimizer.lr_decay_style = optim::DecayStyle::linear;
  s.batch.train_iters.reset();
  s.batch.train_samples = 40;
  EXPECT_EQ(notes_of(s)["lr-decay-samples"], "40: --train-samples");
  s.optimizer.lr_warmup_fraction = 0.13;
  EXPECT_EQ(notes_of(s)["lr-warmup-samples"], "5: 0.13 x 40 decay samples = 5.2 samples");
  settings::TrainSettings open = small();  // a plan without a number of steps
  open.batch.train_iters.reset();
  EXPECT_FALSE(notes_of(open).contains("lr-decay-iters"));
  open.optimizer.lr_warmup_fraction = 0.25;
  EXPECT_FALSE(notes_of(open).contains("lr-warmup-iters"));
  EXPECT_FALSE(notes_of(s).contains("decoupled-min-lr"));
  s.optimizer.min_lr = 1e-5;
  s.optimizer.decoupled_lr = 1e-2;
  EXPECT_EQ(notes_of(s)["decoupled-min-lr"], "1e-05: --min-lr");
}

TEST(DerivedSettings, OfACheckpoint) {
  const settings::TrainSettings given = small();
  SettledRun run = settle_run(given);
  run.settings.checkpoint.save = "run";
  run.settings.checkpoint.save_retain_interval = 5;
  run.settings.checkpoint.use_checkpoint_scheduler = true;
  resume::TrainerState state;
  state.seed = 77;
  state.learning_rate = run.settings.optimizer.learning_rate(run.settings.batch);
  state.learning_rate.max = 0.5;
  state.learning_rate.style = optim::DecayStyle::cosine;
  state.learning_rate.decoupled = {{.max = 0.25, .min = 0}};
  state.weight_decay = run.settings.optimizer.decay(run.settings.batch);
  std::map<std::string, std::string> notes;
  for (const SettingNote& note : derived_settings({.given = given,
                                                   .settings = run.settings,
                                                   .model = run.model,
                                                   .vocabulary = run.vocabulary,
                                                   .stages = {{"load", "other", "a stage said so"}},
                                                   .resumed = &state,
                                                   .resumed_from = "run/iter_0000005"}))
    notes[note.flag] = note.value + ": " + note.cause;
  EXPECT_EQ(notes["lr"],
            "0.5: --use-checkpoint-opt-param-scheduler: from run/iter_0000005, instead of 0.001");
  EXPECT_EQ(
      notes["lr-decay-style"],
      "cosine: --use-checkpoint-opt-param-scheduler: from run/iter_0000005, instead of linear");
  EXPECT_EQ(notes["decoupled-lr"],
            "0.25: --use-checkpoint-opt-param-scheduler: from run/iter_0000005, instead of absent");
  EXPECT_FALSE(notes.contains("lr-decay-iters")) << "the flags' schedule is not the one that holds";
  EXPECT_EQ(
      notes["seed"],
      "77: dropout continues with the seed of run/iter_0000005 (with --no-load-rng: --seed 1234)");
  EXPECT_EQ(notes["save-keep"], "1: --save-retain-interval");
  EXPECT_EQ(notes["log-jsonl"], "run/log.jsonl: in the --save folder");
  EXPECT_EQ(notes["load"], "other: a stage said so");
  EXPECT_FALSE(notes.contains("min-lr"));
}

TEST(DerivedSettings, AreToldInColumns) {
  EXPECT_EQ(note_lines({{"lr", "1", "because"}, {"threads", "12", "so"}}),
            (std::vector<std::string>{"  --lr 1         because", "  --threads 12   so"}));
  const std::string longest(60, 'x');
  EXPECT_EQ(note_lines({{"save", longest, "a"}, {"lr", "1", "b"}})[1], "  --lr 1   b");
  EXPECT_TRUE(note_lines({}).empty());
}

}  // namespace
}  // namespace megatron::training
