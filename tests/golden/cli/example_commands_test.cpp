// Command lines from Megatron-LM's examples and documents, taken as they are except for the
// program's name. All refused flags are named at once; without them the program itself checks and
// plans the rest. Two lists name the refused flags: kLayout has those that divide a run and kOthers
// the others; docs/configuration.md has both.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "cli/options.h"
#include "golden/cli/process.h"
#include "settings/settings.h"
#include "training/plan/make_plan.h"

namespace megatron::cli {
namespace {

using testing::Outcome;
using testing::Workplace;

// Flags that divide a run, are refused in some example, and are not implemented yet.
const std::set<std::string> kLayout = {};
const std::set<std::string> kOthers = {};

struct Example {
  std::string name;
  std::string flags;              // words separated by spaces
  std::set<std::string> refused;  // unimplemented flags, each in one of the two lists
  double parameters = 0;          // parameters of the model, vocabulary not padded
  int64_t ranks = 0;              // number of ranks on the example's machines
  int stages = 1;
};

// examples/gpt3/train_gpt3_175b_distributed.sh
const Example kGpt3Large = {
    "GPT-3 175B",
    "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 "
    "--max-position-embeddings 2048 --attention-backend auto "
    "--micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375 "
    "--train-iters 500000 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 "
    "--init-method-std 0.006 --clip-grad 1.0 --fp16 --lr 6.0e-5 --lr-decay-style cosine "
    "--min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters 430000 "
    "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 "
    "--data-path gpt3_text_document --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt "
    "--split 949,50,1 "
    "--log-interval 100 --save-interval 10000 --eval-interval 1000 --save checkpoints "
    "--load checkpoints --eval-iters 10 --tensorboard-dir logs",
    {},
    96.0 * (12.0 * 12288 * 12288 + 13 * 12288) + (50257.0 + 2048 + 2) * 12288,
    1024,
    16};

// examples/gpt3/train_gpt3_857m_distributed.sh
const Example kGpt3Small = {
    "GPT-3 857M",
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --attention-backend auto "
    "--micro-batch-size 8 --global-batch-size 128 --train-iters 500000 --weight-decay 0.1 "
    "--adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.006 --clip-grad 1.0 --fp16 --lr 6.0e-5 "
    "--lr-decay-style cosine --min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters 430000 "
    "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 1 "
    "--data-path gpt3_text_document --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt "
    "--split 949,50,1 --log-interval 100 --save-interval 10000 --eval-interval 1000 "
    "--save checkpoints --load checkpoints --eval-iters 10 --tensorboard-dir logs",
    {},
    24.0 * (12.0 * 1024 * 1024 + 13 * 1024) + (50257.0 + 2048 + 2) * 1024,
    8};

// examples/pretrain_gpt.sh of 2023, with an option spelled as it was then.
const Example kGpt345 = {
    "GPT 345M",
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 8 --lr 0.00015 "
    "--train-iters 500000 --lr-decay-iters 320000 --lr-decay-style cosine --min-lr 1.0e-5 "
    "--weight-decay 1e-2 --lr-warmup-fraction .01 --clip-grad 1.0 --fp16 "
    "--data-path my-gpt2_text_document --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt "
    "--data-impl mmap --split 949,50,1 --log-interval 100 --save-interval 10000 "
    "--eval-interval 1000 --eval-iters 10 --save checkpoints --load checkpoints",
    {},
    24.0 * (12.0 * 1024 * 1024 + 13 * 1024) + (50257.0 + 1024 + 2) * 1024,
    1};

// examples/llama/train_llama3_8b_h100_fp8.sh with its mock data, and a recipe in place of the
// default. The quotes are part of the words, because the script's shell keeps them.
const Example kLlama8b = {
    "Llama 3 8B",
    "--use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128 "
    "--seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope "
    "--rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 --hidden-dropout 0.0 "
    "--swiglu --init-method-std 0.0134 --attention-backend fused --apply-layernorm-1p "
    "--untie-embeddings-and-output-weights --disable-bias-linear "
    "--micro-batch-size 1 --global-batch-size 128 --train-samples 1953125000 "
    "--lr-decay-samples 1949218748 --lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001 "
    "--decoupled-lr 5.0e-4 --decoupled-min-lr 4.5e-5 --lr-decay-style cosine --clip-grad 1.0 "
    "--weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --bf16 --grad-reduce-in-bf16 "
    "--cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc "
    "--empty-unused-memory-level 1 --exit-duration-in-mins 235 "
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
    "--fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max "
    "--fp8-param-gather "
    "--tensor-model-parallel-size 1 --context-parallel-size 1 --sequence-parallel "
    "--mock-data --tokenizer-type NullTokenizer --vocab-size 128256 --data-cache-path cache "
    "--tiktoken-pattern v2 --split '99,1,0' --no-create-attention-mask-in-dataloader "
    "--no-mmap-bin-files --num-workers 1 "
    "--log-interval 1 --eval-iters 32 --eval-interval 100 --save-interval 1000 --log-throughput "
    "--profile --profile-step-start 4 --profile-step-end 6 --ckpt-format torch_dist "
    "--distributed-timeout-minutes 60 --save checkpoints/llama3_8b_fp8 "
    "--load checkpoints/llama3_8b_fp8 --tensorboard-dir tensorboard_logs/llama3_8b_fp8",
    kOthers,
    32.0 * (4096.0 * (4096 + 2 * 1024 + 4096) + 3.0 * 4096 * 14336 + 4 * 4096) +
        2.0 * 128256 * 4096 + 2 * 4096,
    8};

// From raw data to a trained model, on 8 GPUs.
const Example kJourney = {
    "Llama-style 2B",
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel "
    "--num-layers 24 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16 "
    "--seq-length 2048 --max-position-embeddings 2048 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights "
    "--transformer-impl transformer_engine --micro-batch-size 4 --global-batch-size 256 "
    "--train-iters 100000 --lr 3e-4 --min-lr 3e-5 --lr-decay-style WSD "
    "--lr-wsd-decay-style minus_sqrt --lr-wsd-decay-iters 10000 --lr-warmup-iters 2000 "
    "--weight-decay 0.1 --clip-grad 1.0 --adam-beta2 0.95 --bf16 --use-distributed-optimizer "
    "--overlap-grad-reduce --overlap-param-gather "
    "--data-path 0.7 processed_data_text_document 0.3 other_text_document --split 949,50,1 "
    "--data-cache-path /cache --tokenizer-type HuggingFaceTokenizer --tokenizer-model /path/tok "
    "--save ckpt --load ckpt --save-interval 1000 --eval-interval 1000 --eval-iters 10 "
    "--log-interval 10 --log-throughput --tensorboard-dir tb --async-save",
    {},
    24.0 * (4.0 * 2048 * 2048 + 3.0 * 2048 * 8192 + 2 * 2048) + 2.0 * 128256 * 2048 + 2048,
    8,
    2};

// examples/mamba/train.sh, whose program is pretrain_mamba.py. Its two shapes: attention in 8% of
// the layers, MLPs in half of them.
constexpr const char* kMambaRest =
    "--sequence-parallel --pipeline-model-parallel-size 1 --use-distributed-optimizer "
    "--overlap-param-gather --overlap-grad-reduce --untie-embeddings-and-output-weights "
    "--init-method-std 0.02 --position-embedding-type none --group-query-attention "
    "--num-query-groups 8 --hybrid-attention-ratio 0.08 --hybrid-mlp-ratio 0.5 --seq-length 4096 "
    "--max-position-embeddings 4096 --train-samples 73242188 --lr-warmup-samples 50000 "
    "--lr-decay-samples 73192188 --save checkpoints --load checkpoints --data-path DATA "
    "--data-cache-path data-cache --split 99,1,0 --tokenizer-type GPTSentencePieceTokenizer "
    "--tokenizer-model /path/tok.model --distributed-backend nccl --micro-batch-size 4 --lr 2.5e-4 "
    "--min-lr 2.5e-5 --lr-decay-style cosine --weight-decay 0.1 --clip-grad 1.0 "
    "--attention-dropout 0.0 --hidden-dropout 0.0 --disable-bias-linear --normalization RMSNorm "
    "--adam-beta1 0.9 --adam-beta2 0.95 --log-interval 10 --save-interval 2000 "
    "--eval-interval 2000 --eval-iters 32 --bf16 --use-mcore-models "
    "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec "
    "--no-create-attention-mask-in-dataloader --tensorboard-dir tensorboard ";

// h^2 is that of a square matrix. A state space of width 2h with 8 groups of 128 states and heads
// of 64; attention with 8 key heads; an MLP of width 4h.
constexpr double mamba_parameters(double h, double spaces, double attention, double mlps,
                                  double key_width) {
  const double heads = h / 32, convolved = 2 * h + 2 * 8 * 128;
  return spaces *
             (h * (2 * h + convolved + heads) + 5 * convolved + 3 * heads + 2 * h + 2 * h * h + h) +
         attention * (h * (2 * h + 2 * key_width) + h) + mlps * (8 * h * h + h) + 2 * 32000 * h + h;
}
const Example kMamba800m = {"Mamba hybrid 800M",
                            std::string(kMambaRest) +
                                "--tensor-model-parallel-size 1 --num-layers 48 --hidden-size 1024 "
                                "--num-attention-heads 16 --global-batch-size 32",
                            {},
                            mamba_parameters(1024, 20, 4, 24, 512),
                            8};
const Example kMamba8b = {"Mamba hybrid 8B",
                          std::string(kMambaRest) +
                              "--tensor-model-parallel-size 4 --num-layers 56 --hidden-size 4096 "
                              "--num-attention-heads 32 --global-batch-size 8",
                          {},
                          mamba_parameters(4096, 24, 4, 28, 1024),
                          8};

std::vector<Example> examples() {
  return {kGpt3Large, kGpt3Small, kGpt345, kLlama8b, kJourney, kMamba8b};
}

Arguments words_of(const std::string& text) {
  Arguments words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// Returns the flags at the start of an Error's lines.
std::set<std::string> flags_of_lines(const std::string& text) {
  std::set<std::string> flags;
  for (size_t at = text.find("--"); at != text.npos;) {
    const size_t end = text.find_first_of(" \n:=", at);
    flags.insert(text.substr(at, end - at));
    const size_t line = text.find("\n", at);
    at = line == text.npos ? line : text.find("--", line);
  }
  return flags;
}

Arguments without(const Arguments& words, const std::set<std::string>& flags) {
  Arguments kept;
  bool drop = false;
  for (const std::string& word : words) {
    if (word.starts_with("--")) drop = flags.contains(word);
    if (!drop) kept.push_back(word);
  }
  return kept;
}

std::string problem(const Arguments& words, settings::TrainSettings& settings) {
  Fields fields = settings.fields();
  std::vector<std::string> notes;
  try {
    parse_training("megatron plan", "", fields, words, notes);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ExampleCommands, RefuseByNameWhatNoCodeServesYet) {
  for (const Example& example : examples()) {
    settings::TrainSettings settings;
    const std::string refusal = problem(words_of(example.flags), settings);
    EXPECT_EQ(flags_of_lines(refusal), example.refused) << example.name << ": " << refusal;
  }
}

TEST(ExampleCommands, AreRefusedForWhatTheListsHoldAlone) {
  std::set<std::string> listed = kLayout, refused;
  listed.insert(kOthers.begin(), kOthers.end());
  EXPECT_EQ(listed.size(), kLayout.size() + kOthers.size()) << "a flag stands in one list";
  for (const Example& example : examples())
    refused.insert(example.refused.begin(), example.refused.end());
  EXPECT_EQ(refused, listed);
}

// Flags that scripts add to such lines: they log more, or ask for what this program does anyway.
TEST(ExampleCommands, PassWithFlagsThatOnlyLog) {
  const std::string logging =
      "--wandb-project p --wandb-exp-name n --wandb-entity e --wandb-save-dir d "
      "--timing-log-level 2 --timing-log-option minmax --log-timers-to-tensorboard "
      "--log-memory-to-tensorboard --log-num-zeros-in-grad --log-params-norm --log-progress "
      "--log-straggler --disable-straggler-on-startup --straggler-minmax-count 16 "
      "--log-throughput --log-world-size-to-tensorboard --log-validation-ppl-to-tensorboard "
      "--log-energy --log-max-attention-logit --log-device-memory-used --log-memory-interval 100 "
      "--no-barrier-with-level-1-timing --tensorboard-queue-size 5 --logging-level 40 "
      "--otel-enabled --use-pytorch-profiler --nvtx-ranges --rerun-mode validate_results "
      "--record-memory-history --grad-reduce-in-bf16 --expert-model-parallel-size 1";
  for (const Example& example : {kGpt3Large, kLlama8b}) {
    settings::TrainSettings settings;
    Arguments words = without(words_of(example.flags), example.refused);
    for (const std::string& word : words_of(logging)) words.push_back(word);
    EXPECT_EQ(problem(words, settings), "") << example.name;
  }
}

TEST(ExampleCommands, LlamaOnSeveralContextRanks) {
  Arguments words = without(words_of(kLlama8b.flags), kLlama8b.refused);
  const auto flag = std::ranges::find(words, "--context-parallel-size");
  ASSERT_NE(flag, words.end());
  *(flag + 1) = "2";
  settings::TrainSettings settings;
  EXPECT_EQ(problem(words, settings), "");
}

// Runs `megatron plan` on each line, with and without the refused flags. PlanLarge plans the model
// with 175 billion parameters.
TEST(ExampleCommands, GoThroughTheProgram) {
  const Workplace place;
  for (const Example& example : {kGpt3Small, kGpt345, kLlama8b, kJourney, kMamba800m}) {
    SCOPED_TRACE(example.name);
    Arguments words = {"plan", "--no-time"};
    for (const std::string& word : words_of(example.flags)) words.push_back(word);
    const Outcome whole = place.run(words);
    EXPECT_EQ(whole.code, example.refused.empty() ? 0 : 2) << whole.err;
    for (const std::string& flag : example.refused)
      EXPECT_NE(whole.err.find("\n  " + flag), std::string::npos) << whole.err;
    if (example.refused.empty()) continue;
    const Outcome rest = place.run(without(words, example.refused));
    EXPECT_EQ(rest.code, 0) << rest.err;
    EXPECT_NE(rest.out.find("parameters"), std::string::npos) << rest.out;
  }
}

// examples/bert/train_bert_340m_distributed.sh, whose program is pretrain_bert.py, which takes
// --vocab-file for that of BertWordPieceLowerCase.
constexpr const char *kBertShape =
                         "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 "
                         "--seq-length 512 --max-position-embeddings 512 ",
                     *kBertLayout =
                         "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 ",
                     *kBertRest =
                         "--attention-backend auto --micro-batch-size 4 --global-batch-size 32 "
                         "--train-iters 1000000 --weight-decay 1e-2 --clip-grad 1.0 --fp16 "
                         "--lr 0.0001 --lr-decay-iters 990000 --lr-decay-style linear "
                         "--min-lr 1.0e-5 --weight-decay 1e-2 --lr-warmup-fraction .01 "
                         "--clip-grad 1.0 --split 949,50,1 --log-interval 100 "
                         "--save-interval 10000 --eval-interval 1000 --save checkpoints "
                         "--load checkpoints --eval-iters 10 --tensorboard-dir logs ";

TEST(ExampleCommands, BertPassesButForItsStages) {
  const Workplace place;
  const std::string data = std::string(MEGATRON_GOLDEN) + "/bert_dataset/data/",
                    paths = "--data-path " + data + "docs60 --vocab-file " + data +
                            "wordpiece/vocab.txt ";
  const auto run = [&](const std::string& line) { return place.run(words_of(line)); };
  // Its 24 layers are not 16 equal stages, which Megatron-LM refuses, too.
  const Outcome uneven =
      run("plan --no-time --task mlm " + paths + kBertShape + kBertLayout + kBertRest);
  EXPECT_EQ(uneven.code, 2);
  EXPECT_NE(uneven.err.find("--num-layers 24 cannot be divided evenly"), std::string::npos);
  const std::string eight = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 ";
  const Outcome planned =
      run("plan --no-time --json --task mlm " + paths + kBertShape + eight + kBertRest);
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_NE(planned.out.find("\"ranks\": 64"), std::string::npos) << planned.out.substr(0, 500);
  // The same command trains with a small shape, layout, number of steps, and shares of 60
  // documents.
  const Outcome trained =
      run("train --task mlm " + paths + kBertRest +
          "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 "
          "--max-position-embeddings 32 --tensor-model-parallel-size 2 --exit-interval 2 --split "
          "8,1,1");
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(std::filesystem::exists(place / "checkpoints/iter_0000002/config.json"));
}

// The flags of train_t5_220m_distributed.sh, but for its paths.
constexpr const char *kT5Shape =
                         "--encoder-num-layers 12 --decoder-num-layers 12 --hidden-size 768 "
                         "--num-attention-heads 12 --kv-channels 64 --ffn-hidden-size 3072 ",
                     *kT5Lengths =
                         "--encoder-seq-length 512 --decoder-seq-length 128 "
                         "--max-position-embeddings 512 --micro-batch-size 64 ",
                     *kT5Rest =
                         "--global-batch-size 512 --lr 0.0001 --train-iters 1000000 "
                         "--lr-decay-iters 1000000 --lr-decay-style linear --min-lr 0.00001 "
                         "--weight-decay 1e-2 --lr-warmup-fraction .01 --clip-grad 1.0 --bf16 "
                         "--vocab-extra-ids 100 --init-method-std 0.015 "
                         "--transformer-impl transformer_engine --tensor-model-parallel-size 1 "
                         "--pipeline-model-parallel-size 1 --attention-backend auto "
                         "--tokenizer-type BertWordPieceCase --log-interval 100 "
                         "--save-interval 500 --eval-interval 1000 --eval-iters 10 "
                         "--distributed-backend nccl --save checkpoints --load checkpoints "
                         "--tensorboard-dir logs ";

TEST(ExampleCommands, T5PassesAsItIs) {
  const Workplace place;
  const std::string data = std::string(MEGATRON_GOLDEN) + "/bert_dataset/data/",
                    paths = "--task span-corruption --data-path " + data + "docs60 --vocab-file " +
                            data + "wordpiece/vocab.txt ";
  const auto run = [&](const std::string& line) { return place.run(words_of(line)); };
  const Outcome planned = run("plan --no-time --json " + paths + kT5Shape + kT5Lengths + kT5Rest +
                              "--split 99982,9,9 --ranks 8");
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_NE(planned.out.find("\"encoder_length\": 512"), std::string::npos)
      << planned.out.substr(0, 500);
  // The same command trains with a small shape, layout, number of steps, and shares of 60
  // documents.
  const Outcome trained =
      run("train " + paths + kT5Rest +
          "--encoder-num-layers 2 --decoder-num-layers 1 --hidden-size 32 --num-attention-heads 4 "
          "--encoder-seq-length 64 --decoder-seq-length 32 --max-position-embeddings 64 "
          "--micro-batch-size 4 --global-batch-size 8 --exit-interval 2 --split 8,1,1");
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.err.find("Megatron-LM's own T5"), std::string::npos) << trained.err;
  const Json config = Json::read(place / "checkpoints/iter_0000002/config.json");
  EXPECT_EQ(config["model_type"].as_string(), "megatron");
  EXPECT_EQ(config["model"]["encoder-layers"].as_integer(), 2);
  // Its texts begin with the token that the decoder's samples began with.
  EXPECT_GT(config["model"]["start-token"].as_integer(), 0);
  const Outcome text = place.run({"generate", "--load", "checkpoints/iter_0000002", "--prompt",
                                  "the time of the year", "--max-tokens", "3"});
  EXPECT_EQ(text.code, 0) << text.err;
}

// Plans each example on its intended number of ranks: one rank of each stage, and the traffic of
// all. Of GPT-3's 192 micro-batches 32 are enough, twice as many as it has stages.
TEST(ExampleCommands, ArePlannedOnTheirRanks) {
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.name);
    settings::TrainSettings settings;
    Arguments words = without(words_of(example.flags), example.refused);
    words.insert(words.end(), {"--ranks", std::to_string(example.ranks)});
    std::ranges::replace(words, std::string("1536"), std::string("256"));
    EXPECT_EQ(problem(words, settings), "");
    const plan::Plan plan = training::make_plan(settings, {.time = false});
    EXPECT_EQ(plan.ranks, example.ranks);
    EXPECT_EQ(static_cast<double>(plan.parameter_count()), example.parameters);
    EXPECT_FALSE(plan.derived.empty());
    EXPECT_EQ(static_cast<int>(plan.stages.size()), example.stages);
    EXPECT_EQ(plan.traffic.empty(), example.ranks == 1);
    const int64_t model_ranks = settings.parallel.model_ranks();
    EXPECT_EQ(plan.micro_batches * plan.micro_batch_size * (example.ranks / model_ranks),
              plan.sequences);
    const auto weights = [](const plan::MemoryUse& use) {
      return static_cast<double>(use.arenas[static_cast<size_t>(MemoryClass::parameters)]);
    };
    double bytes = 0;  // bytes of one replica, 2 per parameter
    for (const plan::MemoryUse& use : plan.stages)
      bytes += weights(use) * static_cast<double>(model_ranks / example.stages);
    EXPECT_GE(bytes, 2 * example.parameters);
    // With codes of 8 bits, a rank keeps its shard beside the gathered weights.
    const double apart = settings.precision.fp8_param_gather ? 2.0 / plan.ranks : 0;
    EXPECT_LE(bytes, (2.1 + apart) * example.parameters);
  }
}

}  // namespace
}  // namespace megatron::cli
