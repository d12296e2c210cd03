// Breaks each rule of the table once, in the table's order, and checks that the message names what
// a user can change.
#include "settings/rules.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace megatron::settings {
namespace {

using enum RuleScope;

std::vector<std::string> words_of(const std::string& flags) {
  std::vector<std::string> words;
  for (size_t at = 0, end; at < flags.size(); at = end + 1) {
    end = std::min(flags.find(' ', at), flags.size());
    words.push_back(flags.substr(at, end - at));
  }
  return words;
}

TrainSettings settings_of(const std::string& flags) {
  TrainSettings settings;
  settings.runtime.ranks = 2;
  Fields fields = settings.fields();
  const std::vector<std::string> words = words_of(flags);
  for (size_t i = 0; i < words.size();) {
    Field* const field = fields.find(words[i].substr(2));
    EXPECT_NE(field, nullptr) << words[i];
    std::vector<std::string> values;
    for (++i; i < words.size() && !words[i].starts_with("--"); ++i) values.push_back(words[i]);
    if (field != nullptr) field->assign(values);
  }
  return settings;
}

std::string refusal(RuleScope scope, const std::string& flags) {
  try {
    check_rules(scope, settings_of(flags));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

struct Broken {
  RuleScope scope;
  std::string flags, says;  // the beginning of the message
};

const std::string kOverlap = "--overlap-moe-expert-parallel-comm --expert-model-parallel-size 2 ",
                  kGraphs = "--cuda-graph-impl local ";

const std::vector<Broken> kBroken = {
    {flags, "--task sft --mock-data", "--mock-data names no file that --task sft reads"},
    {flags, "--task sft --reset-attention-mask", "--reset-attention-mask has no effect with --tas"},
    {flags, "--task mlm --fim-data",
     "--fim-data rearranges the documents that a model of next tok"},
    {flags, "--chat-packing none", "--chat-packing none has no effect without --task sft"},
    {flags, "--task mlm --epochs 2", "--epochs 2 counts passes over the examples of --task sft"},
    {flags, "--task mlm --chat-packing none", "--chat-packing none has no effect with --task mlm"},
    {flags, "--task mlm --no-calculate-per-token-loss", "--no-calculate-per-token-loss weighs"},
    {flags, "--task mlm --sample-interval 2 --sample-prompt a", "--sample-interval generates"},
    {flags, "--decoder-seq-length 8", "--decoder-seq-length 8 is for --task span-corruption"},
    {flags, "--task seq2seq --sample-interval 2 --sample-prompt a",
     "--sample-interval continues a prompt, but a model of --task seq2seq has an encoder"},
    {flags, "--task sft --input-key q", "--input-key q names a key of records, which only --task"},
    {flags, "--task seq2seq --chat-template x", "--chat-template x has no effect with --task seq"},
    {flags, "--task classify --moe-use-upcycling --model x --num-experts 4",
     "--moe-use-upcycling makes a language model that is not trained yet"},
    {flags, "--log-entropy --cuda-graph-impl local", "--log-entropy computes the logits of a num"},
    {flags, "--log-entropy --task reward", "--log-entropy is of next tokens, but --task reward"},
    {flags, "--labels a b", "--labels names classes, which only --task classify and token-classif"},
    {flags, "--doc-stride 9",
     "--doc-stride 9 is of windows of contexts, which only --task question"},
    {flags, "--task token-classification --chat-template a",
     "--chat-template a has no effect with"},
    {flags, "--task question-answering --chat-truncation keep_end",
     "--chat-truncation keep_end has no effect with --task question-answering"},
    {flags, "--center-rewards-coefficient 0.01", "--center-rewards-coefficient is of the loss of"},
    {flags, "--moe-use-upcycling --model-config x", "--moe-use-upcycling needs the weights of a"},
    {flags, "--moe-use-upcycling", "--moe-use-upcycling needs a dense model"},
    {flags, "--train-iters 3 --train-samples 7", "--train-iters 3 and --train-samples 7 are both"},
    {flags, "--task sft --train-iters 3 --epochs 2", "--train-iters 3 and --epochs 2 are both"},
    {flags, "--epochs 2", "--epochs 2 counts passes over the examples of --task sft, dpo"},
    {flags, "--task sft --epochs 2 --rampup-batch-size 1 1 8",
     "--epochs 2 needs batches of one size: drop --rampup-batch-size"},
    {flags, "--task sft --epochs 2 --extend-to-iters 9",
     "--extend-to-iters 9 extends a number of steps, but --epochs 2 is given"},
    {flags, "--global-batch-size 8 --step-batch-size-schedule 0:4", "--global-batch-size 8 and"},
    {flags, "--rampup-batch-size 1 1 8 --step-batch-size-schedule 0:4",
     "--step-batch-size-schedule cannot be combined with --rampup-batch-size: drop one"},
    {flags, "--bf16 --fp16", "--bf16 and --fp16 are mutually exclusive"},
    {flags, "--fp8-format e4m3 --fp4-format e2m1", "--fp8-format and --fp4-format are mutually"},
    {flags, "--bf16 --loss-scale 8", "--loss-scale is 8, but the loss is scaled only with --fp16"},
    {flags, "--hysteresis 3", "--hysteresis is 3, but the loss is scaled only with --fp16"},
    {flags, "--fp16 --loss-scale 8 --loss-scale-window 7",
     "--loss-scale-window applies to a dynamic loss scale, but --loss-scale 8 is constant"},
    {flags, "--fp4-format e2m1 --fp4-param-gather --no-check-for-nan-in-loss-and-grad",
     "--fp4-param-gather sends codes of 4 bits"},
    {flags, "--on-non-finite skip --no-check-for-nan-in-loss-and-grad", "--on-non-finite skip"},
    {flags, "--skip-train --eval-iters 0", "--skip-train only evaluates"},
    {flags, "--start-eval-at-iter 5", "--start-eval-at-iter needs --eval-interval"},
    {flags, "--full-validation", "--full-validation needs --eval-interval"},
    {flags, "--multiple-validation-sets", "--multiple-validation-sets needs --full-validation"},
    {flags, "--validation-set-names x", "--validation-set-names needs --multiple-validation-sets"},
    {flags, "--no-data-sharding", "--no-data-sharding applies to --dataloader-type cyclic only"},
    {flags, "--sample-interval 5", "--sample-interval and --sample-prompt TEXT belong together"},
    {flags, "--finetune", "--finetune starts from the weights"},
    {flags, "--async-save", "--async-save needs --save DIR"},
    {flags, "--no-load-rng", "--no-load-rng needs --load DIR"},
    {flags, "--load x --override-opt-param-scheduler --use-checkpoint-opt-param-scheduler",
     "--override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler contradict"},
    {flags, "--profile-dir x", "--profile-dir x has no effect without --profile"},
    {flags, "--pretrained-checkpoint x --model y", "--pretrained-checkpoint x and --model y both"},
    {flags, "--model x --model-config y", "--model x and --model-config y both give the model;"},
    {flags, "--model-config y --swiglu", "--swiglu and --model-config y both give the model's"},
    {flags, "--train-samples 9 --lr-wsd-decay-iters 5",
     "--lr-wsd-decay-iters cannot be combined with --train-samples: the run counts in samples; use "
     "--lr-wsd-decay-samples"},
    {flags, "--lr-decay-samples 5",
     "--lr-decay-samples needs --train-samples: otherwise the run counts in iterations; use "
     "--lr-decay-iters"},
    {flags, "--lr-warmup-fraction 0.1 --lr-warmup-iters 5",
     "--lr-warmup-fraction 0.1 and --lr-warmup-iters 5 both set"},
    {flags, "--decoupled-min-lr 0.5", "--decoupled-min-lr 0.5 needs --decoupled-lr"},
    {flags, "--train-samples 9 --lr-decay-style WSD",
     "--lr-decay-style WSD needs --lr-wsd-decay-s"},
    {flags, "--lr-decay-style WSD", "--lr-decay-style WSD needs --lr-wsd-decay-iters"},
    {sizes, "--expert-model-parallel-size 2 --tensor-model-parallel-size 3",
     "--expert-model-parallel-size 2 with --tensor-model-parallel-size 3 needs"},
    {sizes, "--expert-tensor-parallel-size 1 --tensor-model-parallel-size 2",
     "--expert-tensor-parallel-size 1 differs from --tensor-model-parallel-size 2, which"},
    {sizes, "--hierarchical-context-parallel-sizes 2 2 --cp-comm-type a2a",
     "--hierarchical-context-parallel-sizes 2 2 are the levels of --cp-comm-type a2a+p2p"},
    {sizes, "--cp-comm-type p2p a2a+p2p",
     "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes"},
    {parallel, "--num-layers-per-virtual-pipeline-stage 1 --num-virtual-stages-per-pipeline-rank 2",
     "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank both"},
    {parallel, "--num-virtual-stages-per-pipeline-rank 2 --pipeline-model-parallel-layout Et|tL",
     "--num-virtual-stages-per-pipeline-rank and --pipeline-model-parallel-layout both"},
    {parallel, "--num-layers-per-virtual-pipeline-stage 2 --decoder-last-pipeline-num-layers 1",
     "--num-layers-per-virtual-pipeline-stage 2 cannot be combined with "
     "--decoder-last-pipeline-num-layers"},
    {parallel, "--pipeline-schedule zb-v --decoder-first-pipeline-num-layers 1",
     "--pipeline-schedule zb-v keeps both ends"},
    {parallel, "--use-torch-fsdp2 --use-custom-fsdp", "--use-torch-fsdp2 and --use-custom-fsdp"},
    {parallel, "--use-torch-fsdp2 --use-distributed-optimizer", "--use-torch-fsdp2 also shards"},
    {parallel, "--use-torch-fsdp2 --data-parallel-sharding-strategy optim",
     "--use-torch-fsdp2 means --data-parallel-sharding-strategy optim_grads_params, but optim is"},
    {parallel, "--use-distributed-optimizer --data-parallel-sharding-strategy no_shard",
     "--data-parallel-sharding-strategy no_shard and --use-distributed-optimizer contradict"},
    {parallel, "--num-distributed-optimizer-instances 2",
     "--num-distributed-optimizer-instances 2 needs --use-distributed-optimizer"},
    {parallel, "--overlap-param-gather --overlap-grad-reduce", "--overlap-param-gather needs para"},
    {parallel, "--overlap-param-gather --use-distributed-optimizer",
     "--overlap-param-gather needs --overlap-grad-reduce"},
    {parallel, "--ddp-bucket-size 7 --ddp-num-buckets 3", "--ddp-bucket-size 7 and --ddp-num-buck"},
    {memory, "--recompute-activations --recompute-granularity full", "--recompute-activations me"},
    {memory, "--recompute-num-layers 2",
     "--recompute-num-layers applies to "
     "--recompute-granularity full, but nothing is recomputed"},
    {memory, "--recompute-activations --recompute-method block",
     "--recompute-method applies to --recompute-granularity full, but selective is given"},
    {memory, "--recompute-modules mlp --recompute-granularity full",
     "--recompute-modules chooses parts of layers, but --recompute-granularity full"},
    {memory, "--recompute-modules mlp",
     "--recompute-modules chooses parts of layers, but nothing is recomputed"},
    {memory,
     "--mlp-chunks-for-training 4 --pipeline-schedule zb-h1 --data-parallel-sharding-strategy "
     "optim_grads_params",
     "--mlp-chunks-for-training 4 computes weight gradients from the parameters again, but with "
     "--pipeline-schedule zb-h1"},
    {memory, "--mlp-chunks-for-training 4 --lora-rank 2",
     "--mlp-chunks-for-training 4 computes feed-forward blocks without their adapters"},
    {memory, "--recompute-granularity full --distribute-saved-activations",
     "--distribute-saved-activations shards saved activations over"},
    {memory,
     "--recompute-granularity full --distribute-saved-activations --sequence-parallel "
     "--tensor-model-parallel-size 2",
     "--distribute-saved-activations cannot be combined with --sequence-parallel"},
    {memory, "--cpu-offloading-num-layers 2 --recompute-activations",
     "--cpu-offloading-num-layers 2 offloads saved activations"},
    {layout, kOverlap + "--pipeline-schedule zb-h1",
     "--overlap-moe-expert-parallel-comm pairs a forward"},
    {layout, kOverlap + "--recompute-granularity selective --recompute-modules mlp moe",
     "--overlap-moe-expert-parallel-comm stops forward and backward passes within layers"},
    {layout, kOverlap + "--cpu-offloading-num-layers 1",
     "--overlap-moe-expert-parallel-comm cannot be combined with --cpu-offloading-num-layers"},
    {layout, kOverlap + "--use-megatron-fsdp",
     "--overlap-moe-expert-parallel-comm works on layers of two micro-batches at once"},
    {layout, "--optimizer muon --use-distributed-optimizer",
     "--optimizer muon needs whole matrices, but --use-distributed-optimizer or "
     "--data-parallel-sharding-strategy optim shards them"},
    {graphs, kGraphs + kOverlap, "--cuda-graph-impl local captures a forward or backward pass as"},
    {graphs, kGraphs + "--pipeline-schedule zb-v", "--cuda-graph-impl local captures the backward"},
    {graphs, kGraphs + "--context-parallel-size 2 --use-megatron-fsdp",
     "--cuda-graph-impl local needs gradients and parameters at fixed addresses, but with "
     "--data-parallel-sharding-strategy optim_grads_params"},
    {graphs, kGraphs + "--cpu-offloading-num-layers 2",
     "--cuda-graph-impl local captures the device's work only, but --cpu-offloading-num-layers 2"},
    {graphs, kGraphs + "--moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 1",
     "--cuda-graph-impl local cannot capture messages between data-parallel ranks, but "
     "--moe-router-load-balancing-type global_aux_loss sums the counts of 2 of them"},
};

TEST(Rules, EachIsBrokenByFlags) {
  EXPECT_EQ(kBroken.size(), rule_sentences().size());
  for (const Broken& broken : kBroken) {
    const std::string text = refusal(broken.scope, broken.flags);
    EXPECT_TRUE(text.starts_with(broken.says)) << broken.flags << ": " << text;
  }
}

TEST(Rules, DefaultsBreakNone) {
  for (const RuleScope scope : {flags, sizes, parallel, memory, layout, graphs})
    EXPECT_EQ(refusal(scope, ""), "");
}

TEST(Rules, WhatGoesTogetherIsTaken) {
  EXPECT_EQ(refusal(flags, "--fp16 --loss-scale 0 --hysteresis 3"), "");
  EXPECT_EQ(refusal(flags, "--loss-scale 0"), "") << "dynamic, the default";
  EXPECT_EQ(refusal(flags, "--save x --async-save --save-keep 2 --load y --no-load-rng"), "");
  EXPECT_EQ(refusal(flags, "--moe-use-upcycling --model x --num-experts 4"), "");
  EXPECT_EQ(refusal(parallel,
                    "--use-megatron-fsdp --data-parallel-sharding-strategy no_shard "
                    "--use-distributed-optimizer"),
            "");
  EXPECT_EQ(refusal(layout, "--overlap-moe-expert-parallel-comm --recompute-granularity full"), "")
      << "no tokens travel";
  EXPECT_EQ(refusal(graphs, kGraphs + "--use-distributed-optimizer"), "");
  EXPECT_EQ(refusal(memory, "--mlp-chunks-for-training 1 --lora-rank 2"), "");
  EXPECT_NE(refusal(memory, "--mlp-chunks-for-training 2 --adapter x"), "");
}

// For help and documentation: no sentence occurs twice, and none shows the table's own notation.
TEST(Rules, SentencesSayWhatStandsForValues) {
  const std::vector<std::string> sentences = rule_sentences();
  EXPECT_EQ(std::set<std::string>(sentences.begin(), sentences.end()).size(), sentences.size());
  for (const std::string& sentence : sentences)
    EXPECT_EQ(sentence.find_first_of("{}|&"), sentence.npos) << sentence;
  EXPECT_EQ(sentences[2], "--train-iters INT and --train-samples INT are both given; give one");
}

}  // namespace
}  // namespace megatron::settings
