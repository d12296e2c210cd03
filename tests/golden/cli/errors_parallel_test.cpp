// Impossible layouts: `train` and `plan` both refuse each of them before the first step, with exit
// code 2 and a text that names the value, the limit and the flag to change.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "golden/cli/process.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

const Words kRun = {"--num-layers",
                    "12",
                    "--hidden-size",
                    "16",
                    "--num-attention-heads",
                    "4",
                    "--seq-length",
                    "16",
                    "--micro-batch-size",
                    "1",
                    "--global-batch-size",
                    "8",
                    "--train-iters",
                    "10",
                    "--lr",
                    "1e-3",
                    "--mock-data",
                    "--vocab-size",
                    "64"};

Words words_of(const std::string& text) {
  Words words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

class BadLayout : public ::testing::Test {
 protected:
  void refused(const std::string& flags, const Words& parts, const std::string& command = "train") {
    Words line = {command};
    line.insert(line.end(), kRun.begin(), kRun.end());
    for (const std::string& word : words_of(flags)) line.push_back(word);
    const Outcome r = place_.run(line);
    EXPECT_EQ(r.code, 2) << flags << "\n" << r.out << r.err;
    for (const std::string& part : parts)
      EXPECT_NE(r.err.find(part), std::string::npos) << part << " in\n" << r.err << flags;
    EXPECT_EQ(r.out.find("iteration"), std::string::npos) << flags << "\n" << r.out;
    EXPECT_TRUE(place_.listing().empty()) << flags;
  }

  Workplace place_;
};

TEST_F(BadLayout, Sizes) {
  for (const std::string axis : {"tensor", "pipeline"}) {
    const std::string flag = "--" + axis + "-model-parallel-size";
    for (const std::string value : {"0", "-1", "1000000000000000000"})
      refused(flag + "=" + value, {flag + " is " + value + "; it must lie in [1, 1048576]"});
    refused(flag + " 99999999999999999999", {flag, "99999999999999999999"});
    refused(flag + " two", {flag + " is 'two'; give an integer"});
    refused(flag + " 1.5", {flag + " is '1.5'"});
    refused(flag + " 2000", {"--ranks is 2000 (by default the minimum for the parallel",
                             "it must lie in [1, 1024]"});
    refused(flag + " 2 --ranks 3",
            {"3 ranks cannot be divided", axis + " parallel 2", "change --ranks"});
  }
  refused("--tensor-model-parallel-size 3",
          {"--num-attention-heads 4 is not a multiple of --tensor-model-parallel-size 3"}, "plan");
  refused(
      "--tensor-model-parallel-size 4 --num-attention-heads 8 --group-query-attention "
      "--num-query-groups 3",
      {"--num-query-groups 3", "multiple"});
  refused("--tensor-model-parallel-size 2 --sequence-parallel --seq-length 15",
          {"--seq-length 15 cannot be divided by --tensor-model-parallel-size 2",
           "drop --sequence-parallel"});
  refused("--pipeline-model-parallel-size 5",
          {"--num-layers 12 cannot be divided evenly by --pipeline-model-parallel-size 5",
           "--decoder-first-pipeline-num-layers", "--pipeline-model-parallel-layout"},
          "plan");
}

TEST_F(BadLayout, Chunks) {
  const std::string two = "--pipeline-model-parallel-size 2 ",
                    chunks = "--num-virtual-stages-per-pipeline-rank ",
                    layers = "--num-layers-per-virtual-pipeline-stage ";
  refused(chunks + "2", {"2 chunks per stage", "--pipeline-model-parallel-size above 1"});
  refused(layers + "2", {"6 chunks per stage", "--pipeline-model-parallel-size above 1"});
  refused(two + chunks + "0", {"--num-virtual-stages-per-pipeline-rank is 0"});
  refused(two + chunks + "5", {"6 layers of a pipeline stage", "5 virtual stages"});
  refused(two + layers + "5", {"--num-layers 12", "--num-layers-per-virtual-pipeline-stage 5"});
  refused(
      two + chunks + "2 --global-batch-size 1",
      {"is 2, but there are 2 pipeline stages", "1 micro-batches", "raise --global-batch-size"});
  refused("--pipeline-model-parallel-size 4 --global-batch-size 9 " + chunks + "3",
          {"9 micro-batches", "groups of 4", "a last group of 1"});
  refused(two + chunks + "2 --microbatch-group-size-per-virtual-pipeline-stage 9",
          {"is 9, but there are 2 pipeline stages", "8 micro-batches per step"});
  // Only the run's second batch size does not fit.
  refused(two + chunks + "2 --rampup-batch-size 2 1 8",
          {"3 micro-batches", "a last group of 1", "from sample 2 on", "--rampup-batch-size"});
}

TEST_F(BadLayout, Schedules) {
  const std::string two = "--pipeline-model-parallel-size 2 ", flag = "--pipeline-schedule ";
  refused(two + flag + "gpipe", {"'gpipe'", "1f1b, interleaved, zb-h1, zb-v"});
  refused(flag + "zb-h1", {"zb-h1", "--pipeline-model-parallel-size above 1"});
  refused(two + flag + "interleaved", {"give --num-virtual-stages-per-pipeline-rank"});
  refused(two + flag + "zb-v --num-virtual-stages-per-pipeline-rank 3", {"two chunks", "3 are"});
  refused(two + flag + "zb-h1 --num-virtual-stages-per-pipeline-rank 2", {"one chunk", "2 are"});
}

TEST_F(BadLayout, LayersOfTheEnds) {
  const std::string first = "--decoder-first-pipeline-num-layers ",
                    two = "--pipeline-model-parallel-size 2 ";
  refused(first + "2", {"--decoder-first-pipeline-num-layers needs", "above 1"});
  refused(two + first + "0", {"--decoder-first-pipeline-num-layers is 0", "[1, --num-layers 12]"});
  refused(two + first + "12", {"12 leave 0 of --num-layers 12", "need one layer each"});
  refused(two + "--account-for-loss-in-pipeline-split",
          {"--num-layers 12 and the loss cannot be divided evenly"});
  refused(two + "--account-for-loss-in-pipeline-split " + first + "6", {"cannot be combined with"});
}

// The error names the character and its position.
TEST_F(BadLayout, Letters) {
  const std::pair<std::string, std::string> bad[] = {
      {"t*6E|t*6L", "'t' at character 1: the embedding, E, must come first"},
      {"Et*6|t*6", "'t' at character 6: the loss, L, must come last"},
      {"Et*6|t*6Lt", "'L' at character 9: the loss must come last"},
      {"E*2t*6|t*6L", "'E' at character 1: the embedding occurs twice"},
      {"Ex*6|t*6L", "'x' at character 2: a layout is made of E"},
      {"Et*0|t*6L", "'*' at character 3: the number after it must lie in [1, 1048576]"},
      {"Et*99999999999999999999|t*6L", "'*' at character 3: the number after it must lie in"},
      {"Et*|t*6L", "'*' at character 3: a number must follow"},
      {"(Et*6|t*6L", "'(' at character 1: no ) closes it"},
      {"((t|)*2)*6L", "'(' at character 2: parentheses cannot be nested"},
      {"Et*6m|t*6L", "'t' at character 7: a layer cannot follow multi-token prediction (MTP), m"},
      {"Et*12m|mL", "'m' at character 8: all of multi-token prediction (MTP), m, must be in one"},
      {"Et*6|t*6mL", "has 1 layers of multi-token prediction (m), but the model has 0"},
      {"Et*6|t*6|L",
       "has 3 virtual stages, which cannot be divided by --pipeline-model-parallel-size 2"},
      {"Et*6|t*7L", "has 13 layers (t), but --num-layers is 12: change one of them"},
      {"|", "has no E, t and L"},
  };
  for (const auto& [layout, text] : bad)
    refused("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout=" + layout, {text});
  refused(
      "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout=Et*6|t*6L "
      "--decoder-first-pipeline-num-layers 6",
      {"--pipeline-model-parallel-layout and", "drop one"});
}

TEST_F(BadLayout, Sharding) {
  const std::string strategy = "--data-parallel-sharding-strategy ",
                    instances = "--num-distributed-optimizer-instances ";
  refused(strategy + "zero3", {"'zero3'", "no_shard, optim, optim_grads, optim_grads_params"});
  refused(strategy + "no_shard --use-distributed-optimizer", {"contradict", "drop one"});
  refused("--ranks 4 --use-distributed-optimizer " + instances + "3",
          {instances + "3 does not divide the 4 data"});
  refused("--ddp-bucket-size 0", {"--ddp-bucket-size is 0; it must be at least 1"});
  refused("--optimizer muon --use-distributed-optimizer", {"muon needs whole matrices", "adam"});
  refused("--ranks 2 --global-batch-size 3", {"--global-batch-size 3", "2 data-parallel ranks"});
  refused("--hybrid-context-parallel", {"use --context-parallel-size"});
  const std::string context = "--ranks 4 --context-parallel-size ";
  refused(context + "4 --seq-length 20", {"into 8 chunks of equal size, but 20 tokens"});
  refused(context + "3", {"4 ranks cannot be divided", "context parallel 3"});
  refused(context + "2 --cp-comm-type ring",
          {"--cp-comm-type is 'ring'", "p2p, all_gather, a2a, a2a+p2p"});
  refused(context + "2 --cp-comm-type p2p a2a", {"--cp-comm-type has 2 values", "the 12 layers"});
  const std::string levels = " --hierarchical-context-parallel-sizes ", sizes = levels.substr(1);
  refused(context + "4 --cp-comm-type a2a+p2p", {"a2a+p2p needs " + sizes.substr(0, 37)});
  refused(context + "4" + levels + "2 2", {sizes + "2 2 are the levels of --cp-comm-type a2a+p2p"});
  const std::string two = context + "4 --cp-comm-type a2a+p2p" + levels;
  refused(two + "2 4", {sizes + "2 x 4 must equal --context-parallel-size 4"});
  refused(two + "1 4", {sizes + "has '1'", "use --cp-comm-type a2a or p2p"});
  refused(two + "4", {sizes + "has 1 sizes; give two"});
  refused("--ranks 16 --context-parallel-size 16 --seq-length 32 --cp-comm-type a2a+p2p" + levels +
              "8 2",
          {"--cp-comm-type a2a+p2p divides the 4 heads",
           "among the 8 ranks of a group of --hierarchical-context"});
  refused("--ranks 8 --context-parallel-size 8 --cp-comm-type a2a",
          {"--cp-comm-type a2a divides the", "use p2p"});
  refused("--fine-grained-activation-offloading", {"use --cpu-offloading-num-layers"});
  refused("--offload-modules mlp", {"use --cpu-offloading-num-layers"});
}

TEST_F(BadLayout, Memory) {
  const std::string full = "--recompute-granularity full ";
  refused("--recompute-granularity half", {"'half'", "full or selective"});
  refused(full + "--recompute-num-layers 0", {"--recompute-num-layers is 0", "[1, 12]"});
  refused(full + "--recompute-num-layers 7 --pipeline-model-parallel-size 2",
          {"--recompute-num-layers is 7", "[1, 6]"});
  const std::string experts =
      "--num-experts 4 --tensor-model-parallel-size 2 --sequence-parallel --ranks 2 ";
  refused(experts + "--micro-batch-size 3 --global-batch-size 6 --moe-z-loss-coeff 0.1",
          {"--moe-z-loss-coeff", "--sequence-parallel", "--micro-batch-size"});
  refused("--num-experts 4 --moe-expert-rank-capacity-factor 0.5",
          {"--moe-expert-rank-capacity-factor is 0.5", "1 or more"});
  refused("--num-experts 4 --moe-expert-rank-capacity-factor 2 --moe-expert-capacity-factor 1",
          {"--moe-expert-rank-capacity-factor 2 with --moe-expert-capacity-factor 1"});
  refused("--recompute-activations --recompute-modules moe",
          {"'moe'", "mixture-of-experts layers"});
  refused("--recompute-activations --recompute-modules mla_up_proj",
          {"'mla_up_proj'", "multi-latent attention", "does not have"});
  refused("--mlp-chunks-for-training 0", {"--mlp-chunks-for-training is 0; it must be at least 1"});
  refused("--mlp-chunks-for-training 2 --num-experts 4",
          {"--mlp-chunks-for-training is 2", "experts", "--recompute-modules moe"});
  refused("--cpu-offloading-num-layers 12", {"--cpu-offloading-num-layers is 12", "[0, 11]"});
  refused("--cpu-offloading-num-layers 2 --recompute-activations", {"drop it"});
  refused("--optimizer-cpu-offload --optimizer-offload-fraction 2", {"is 2", "[0, 1]"});
  refused("--distributed-timeout-minutes -1", {"--distributed-timeout-minutes is -1", "[0, 1e6]"});
}

TEST_F(BadLayout, RanksOfExperts) {
  const std::string experts = "--num-experts 6 ", ep = "--expert-model-parallel-size ",
                    etp = "--expert-tensor-parallel-size ";
  refused(experts + "--ranks 4 " + ep + "4", {"6 experts cannot be divided evenly", ep + "4"});
  refused(experts + "--ranks 2 " + ep + "3",
          {"2 ranks cannot be divided by " + ep + "3", "--ranks"}, "plan");
  refused(experts + "--ranks 2 " + etp + "4", {"2 ranks cannot be divided by " + etp + "4"});
  for (const std::string& flag : {ep, etp})
    for (const std::string value : {"0", "-2"})
      refused(experts + flag + value, {flag + "is " + value + "; it must lie in [1, "});
  const std::string tensor = "--ranks 2 --tensor-model-parallel-size 2 ";
  refused("--ranks 2 " + ep + "2", {"the model has no experts", "give --num-experts"});
  refused(tensor + "--sequence-parallel " + etp + "1", {"the model has no experts: leave it out"});
}

TEST_F(BadLayout, Experts) {
  const std::string experts = "--num-experts 8 ", topk = "--moe-router-topk ",
                    groups = "--moe-router-num-groups ", best = "--moe-router-group-topk ",
                    freq = "--moe-layer-freq=";
  for (const std::string value : {"9", "0", "-1"})
    refused(experts + topk + value, {topk + "is " + value + "; it must lie in [1, 8]"});
  refused(experts + topk + "1", {topk + "1 with a softmax", "--moe-router-pre-softmax"});
  refused("--num-experts -4", {"--num-experts is -4; it must lie in [1, "});
  refused("--num-experts 5000", {"--num-experts is 5000; it must lie in [1, 4096]"});
  for (const std::string value : {"0", "-4", "9"})
    refused(experts + best + "1 " + groups + value, {groups + "is " + value, "[1, 8]"});
  refused(experts + best + "1 " + groups + "3",
          {"--num-experts 8 is not a multiple of", groups + "3"});
  refused(experts + groups + "4", {best, "give both"});
  for (const std::string value : {"5", "0", "-1"})
    refused(experts + groups + "4 " + best + value, {best + "is " + value, "[1, 4]"});
  refused(experts + groups + "8 " + best + "1", {best + "is 1", "[2, 8]", topk + "2 experts"});
  refused(experts + freq + "[0,1]", {"'[0,1]', which lists 2 layers; --num-layers is 12"});
  refused(experts + freq + "([0]*1+[1]*19)",
          {"([0]*1+[1]*19)", "more numbers than the model's 12 layers"});
  refused(experts + freq + "[0]*12",
          {"[0]*12", "none of the 12 layers", "leave out --num-experts"});
  refused(experts + freq + "([1]*11+[2])", {"each number must be 0 or 1, not 2"});
  for (const std::string value : {"0", "-1"})
    refused(experts + freq + value, {"--moe-layer-freq is " + value + "; it must be positive"});
  for (const std::string flag : {"--moe-ffn-hidden-size", "--moe-shared-expert-intermediate-size"})
    refused(experts + flag + " -8", {flag + " is -8; it must lie in [1, "});
  for (const std::string flag : {"--moe-z-loss-coeff", "--moe-router-bias-update-rate"})
    refused(experts + flag + " -1", {flag + " is -1; it must be 0 or more"});
  refused(experts + "--moe-aux-loss-coeff=-0.1", {"--moe-aux-loss-coeff is '-0.1'", "0 or more"});
  refused(experts + "--moe-router-topk-scaling-factor -1", {"is -1; it must be positive"});
  refused(experts + "--moe-expert-capacity-factor inf", {"'inf'", "give a finite number"});
}

// Without a capacity, flags that depend on one do nothing, and the run says so.
TEST_F(BadLayout, CapacityThatThereIsNot) {
  const std::string factor = "--moe-expert-capacity-factor";
  const auto noted = [&](const std::string& flags, const std::string& note) {
    Words line = {"plan"};
    line.insert(line.end(), kRun.begin(), kRun.end());
    for (const std::string& word : words_of(flags + " --no-time")) line.push_back(word);
    const Outcome r = place_.run(line);
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_NE((r.out + r.err).find(note), std::string::npos) << note << " in\n" << r.out << r.err;
  };
  for (const std::string flag :
       {"--moe-pad-expert-input-to-capacity", "--moe-token-drop-policy position"}) {
    noted("--num-experts 8 " + flag, flag + " has no effect: " + factor + " is not given");
    noted("--num-experts 8 " + factor + " -1 " + flag,
          flag + " has no effect: " + factor + " is a limit");
  }
  noted(factor + " 2", factor + " 2 has no effect: --num-experts is not given");
}

}  // namespace
}  // namespace megatron::testing
