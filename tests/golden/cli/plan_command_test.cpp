// `megatron plan`: consistent figures, without data, for models of any size.
#include <cmath>
#include <cstdlib>

#include "base/json.h"
#include "base/machine_limits.h"
#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

Words flags(int layers, int hidden, int heads, int length, int vocabulary) {
  return {"plan",
          "--num-layers",
          std::to_string(layers),
          "--hidden-size",
          std::to_string(hidden),
          "--num-attention-heads",
          std::to_string(heads),
          "--seq-length",
          std::to_string(length),
          "--micro-batch-size",
          "1",
          "--vocab-size",
          std::to_string(vocabulary)};
}

Words small() { return flags(2, 64, 4, 32, 1000); }

class PlanCommand : public ::testing::Test {
 protected:
  Json json_of(const Words& arguments) {
    const Outcome r = place_.run(with(arguments, {"--json"}));
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.out);
  }
  void expect_error(const Words& arguments, const std::string& part) {
    const Outcome r = place_.run(arguments);
    EXPECT_EQ(r.code, 2) << r.out;
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find(part), std::string::npos) << part << " is not in\n" << r.err;
  }

  Workplace place_;
};

int64_t sum(const Json& object) {
  int64_t total = 0;
  for (const auto& [key, value] : object.as_object()) total += value.as_integer();
  return total;
}

// 2 layers of 12 x 64^2 + 13 x 64, embeddings of 1000 tokens and 32 positions of size 64, and a
// final norm.
TEST_F(PlanCommand, FiguresHoldTogether) {
  const Json plan = json_of(with(
      small(), {"--ranks", "2", "--global-batch-size", "8", "--train-iters", "10", "--no-time"}));
  const Json& parameters = plan["parameters"];
  EXPECT_EQ(parameters["total"].as_integer(), 2 * (12 * 4096 + 13 * 64) + 1032 * 64 + 128);
  EXPECT_EQ(sum(parameters["by_class"]), parameters["total"].as_integer());
  int64_t spans = 0;
  for (const Json& span : parameters["by_span"].as_array()) {
    EXPECT_EQ(sum(span["classes"]), span["total"].as_integer());
    spans += span["total"].as_integer();
  }
  EXPECT_EQ(spans, parameters["total"].as_integer());

  const Json& memory = plan["memory"];
  const Json& rank = memory["rank"];
  EXPECT_EQ(sum(rank), 2 * rank["total"].as_integer());  // the classes and their sum
  EXPECT_EQ(memory["process"].as_integer(),
            memory["program"].as_integer() + 2 * rank["total"].as_integer());
  EXPECT_GE(rank["parameters"].as_integer(), 4 * parameters["total"].as_integer());
  EXPECT_GE(rank["gradients"].as_integer(), 4 * parameters["total"].as_integer());
  EXPECT_GE(rank["optimizer"].as_integer(), 8 * parameters["total"].as_integer());
  EXPECT_TRUE(memory["fits"].as_bool());
  EXPECT_TRUE(memory["suggestions"].as_array().empty());

  EXPECT_EQ(plan["batch"]["tokens"].as_integer(), 8 * 32);
  EXPECT_EQ(plan["batch"]["micro_batches"].as_integer(), 4);
  EXPECT_EQ(plan["iterations"].as_integer(), 10);
  EXPECT_EQ(plan["flops"].as_object().size(), 3U);
  EXPECT_FALSE(plan["traffic"].as_array().empty());
  EXPECT_FALSE(plan["kernels"].as_array().empty());
  EXPECT_TRUE(plan["time"]["step_seconds"].is_null());
}

TEST_F(PlanCommand, OneRankMovesNothing) {
  double sent = 0;
  const Json plan = json_of(with(small(), {"--no-time"}));
  for (const Json& work : plan["traffic"].as_array()) sent += work["sent"].as_number();
  EXPECT_EQ(sent, 0);
}

TEST_F(PlanCommand, EstimatesTheTimeOfAStep) {
  const Json plan = json_of(with(small(), {"--train-iters", "10", "--threads", "1"}));
  const Json& time = plan["time"];
  const double step = time["step_seconds"].as_number();
  EXPECT_GT(step, 0);
  EXPECT_DOUBLE_EQ(time["tokens_per_second"].as_number(), 32 / step);
  EXPECT_DOUBLE_EQ(time["run_seconds"].as_number(), 10 * step);
  EXPECT_DOUBLE_EQ(time["flops_per_second"].as_number(), plan["flops"]["model"].as_number() / step);
  for (const Json& kernel : plan["kernels"].as_array())
    EXPECT_TRUE(kernel["seconds"].is_number()) << kernel["kernel"].as_string();
}

TEST_F(PlanCommand, Page) {
  const Outcome r = place_.run(with(small(), {"--no-time"}));
  EXPECT_EQ(r.code, 0) << r.err;
  for (const char* part :
       {"2 layers, hidden 64, vocabulary 1000", "  layers.0 - layers.1 ", " each\n",
        "Memory per rank: ", " parameters ", " activations ",
        "Memory per process: ", "FLOPs by formula", "megatron_full_attention",
        "Kernels per rank and step", "gemm f32", "Estimated on this machine: n/a\n"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << " is not in\n" << r.out;
}

TEST_F(PlanCommand, SaysWhatASequenceKeepsInAnEngine) {
  const auto generation = [&](const std::string& line) {
    const Outcome r = place_.run(with({"plan", "--no-time", "--json"}, words(line)));
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.out)["generation"];
  };
  const std::string steps = " --seq-length 64 --micro-batch-size 1";
  const Json dense = generation("--preset gpt2-124m --bf16" + steps);
  EXPECT_EQ(dense["token_bytes"].as_integer(), 12 * 2 * 768 * 2);
  EXPECT_EQ(dense["sequence_bytes"].as_integer(), 0);
  const std::string hybrid =
      "--hybrid-layer-pattern M*- --hidden-size 32 --num-attention-heads 2 --vocab-size 64 "
      "--mamba-head-dim 8 --mamba-state-dim 16 --mamba-num-groups 2 --position-embedding-type none";
  const Json mixed = generation(hybrid + steps);
  EXPECT_EQ(mixed["token_bytes"].as_integer(), 2 * 32 * 4);
  EXPECT_GT(mixed["sequence_bytes"].as_integer(), 8 * 8 * 16 * 4);  // an f32 state, and more
  EXPECT_EQ(mixed.dump(), generation(hybrid + " --seq-length 128 --micro-batch-size 1").dump());
}

TEST_F(PlanCommand, DataNeedNotBeThere) {
  const Json plan = json_of(with(small(), {"--data-path", "nowhere/data", "--save", "kept", "--lr",
                                           "1e-3", "--train-iters", "5", "--no-time"}));
  EXPECT_EQ(plan["batch"]["sequences"].as_integer(), 1);
  EXPECT_TRUE(place_.listing().empty());  // and nothing is written
}

TEST_F(PlanCommand, VocabularyOfATokenizer) {
  Words arguments = small();
  arguments.resize(arguments.size() - 2);
  const Json plan =
      json_of(with(arguments, {"--tokenizer-model", vectors("indexed/preprocess/tokenizer_bpe2k"),
                               "--no-time"}));
  EXPECT_EQ(plan["parameters"]["by_class"]["embedding"].as_integer(), 2048 * 64);
}

TEST_F(PlanCommand, WrongFlagsAreNamed) {
  expect_error(with(small(), {"--num-attention-heads", "7"}), "--num-attention-heads");
  expect_error(with(small(), {"--hiden-size", "7"}), "--hidden-size");
  expect_error({"plan", "--num-layers", "2"}, "needs 5 more flags");
  Words shapeless = small();
  shapeless.erase(shapeless.begin() + 3, shapeless.begin() + 5);
  expect_error(shapeless, "--hidden-size");
  expect_error(with(small(), {"--ranks", "3", "--global-batch-size", "4"}), "--global-batch-size");
  expect_error(with(small(), {"--json=perhaps"}), "--json");
}

TEST_F(PlanCommand, HelpExplains) {
  const Outcome r = place_.run({"plan", "--help"});
  EXPECT_EQ(r.code, 0);
  for (const char* part : {"without running it", "--json", "--no-time", "--num-layers"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part;
}

// The run does not fit because of the batches read ahead, so only a smaller batch helps.
TEST_F(PlanCommand, SuggestionsKeepTheGlobalBatchUnlessItIsWhatDoesNotFit) {
  const Json memory = json_of(with(small(), {"--global-batch-size", "2000000000", "--seq-length",
                                             "4096", "--no-time"}))["memory"];
  EXPECT_FALSE(memory["fits"].as_bool());
  ASSERT_EQ(memory["suggestions"].as_array().size(), 1u);
  EXPECT_EQ(memory["suggestions"].as_array()[0].as_string().find("--global-batch-size 1 (needs "),
            0u)
      << memory["suggestions"].as_array()[0].as_string();
}

// For a run on several machines, only the ranks on one machine count.
TEST_F(PlanCommand, CountsTheRanksOfOneMachine) {
  const Words words = with(small(), {"--ranks", "8", "--global-batch-size", "64", "--no-time"});
  const Json all = json_of(words), node = json_of(with(words, {"--nproc-per-node", "2"}));
  EXPECT_EQ(all["ranks_here"].as_integer(), 8);
  EXPECT_EQ(node["ranks_here"].as_integer(), 2);
  const auto of = [](const Json& plan, const char* key) {
    return plan["memory"][key].as_integer();
  };
  const auto ranks = [&](const Json& plan) { return of(plan, "process") - of(plan, "program"); };
  EXPECT_LT(ranks(node), ranks(all) / 3);
  const Outcome r = place_.run(with(words, {"--nproc-per-node", "3"}));
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("--nproc-per-node 3"), std::string::npos) << r.err;
}

// Eight ranks and a model whose state fits only if it is divided among them.
TEST_F(PlanCommand, ProposesToDivideWhatDoesNotFit) {
  const double machine = static_cast<double>(available_memory());
  // 12 layers hidden^2 parameters of 16 bytes on 8 ranks need one and a half machines.
  const auto hidden = static_cast<int64_t>(std::sqrt(1.5 * machine / 8 / 16 / 12 / 2) / 64) * 64;
  const Json memory =
      json_of(with(flags(2, hidden, 4, 32, 100),
                   {"--ranks", "8", "--global-batch-size", "8", "--no-time"}))["memory"];
  EXPECT_FALSE(memory["fits"].as_bool());
  std::string all;
  for (const Json& suggestion : memory["suggestions"].as_array())
    all += suggestion.as_string() + "\n";
  for (const char* flag :
       {"--tensor-model-parallel-size 2 (needs ", "--use-distributed-optimizer (needs ",
        "--data-parallel-sharding-strategy optim_grads_params (needs "})
    EXPECT_NE(all.find(flag), std::string::npos) << flag << " in:\n" << all;
}

// A pipeline's long steps are extrapolated from short ones: 200,000 micro-batches would take
// minutes.
TEST_F(PlanCommand, ALongStepOfAPipelineIsMadeOfShortOnes) {
  const auto activations = [&](const std::string& batch) {
    const Words words =
        with(flags(4, 32, 4, 32, 100), {"--pipeline-model-parallel-size", "2",
                                        "--global-batch-size", batch, "--no-time", "--json"});
    const Outcome r = place_.run(words);
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_TRUE(Json::parse(r.out)["memory"]["exact"].as_bool());
    return Json::parse(r.out)["memory"]["rank"]["activations"].as_integer();
  };
  const int64_t few = activations("12"), many = activations("20000");
  EXPECT_GT(many, few);
  EXPECT_EQ(activations("400000"), many);
}

// The batch size takes more values during the run than the plan simulates.
TEST_F(PlanCommand, TellsWhereTheMarksStandForOthers) {
  const Words words = with(flags(4, 32, 4, 32, 100),
                           {"--pipeline-model-parallel-size", "2", "--global-batch-size", "260",
                            "--rampup-batch-size", "1", "1", "10000", "--no-time"});
  const Outcome page = place_.run(words), json = place_.run(with(words, {"--json"}));
  EXPECT_EQ(page.code, 0) << page.err;
  EXPECT_NE(page.out.find("and may be off by a few percent"), page.out.npos) << page.out;
  EXPECT_FALSE(Json::parse(json.out)["memory"]["exact"].as_bool());
}

// A rank's experts receive between a quarter of the rows (an even load) and all of them.
Words experts() {
  return with(small(), {"--num-experts", "8", "--moe-router-topk", "2", "--ranks", "4",
                        "--expert-model-parallel-size", "4", "--global-batch-size", "4"});
}

int64_t rank_bytes(const Json& plan, size_t load) {
  return plan["experts"]["loads"].as_array().at(load)["rank_bytes"].as_integer();
}

// If a rank holds all experts, a capacity computed from the total load bounds nothing.
TEST_F(PlanCommand, ACapacityBoundsUndividedExpertsBelowTheirWorstLoad) {
  const auto bound = [&](const std::string& factor) {
    const Json plan = json_of(with(small(), {"--num-experts", "8", "--moe-router-topk", "2",
                                             "--no-time", "--moe-expert-capacity-factor", factor}));
    return plan["experts"]["bound"].as_string();
  };
  EXPECT_EQ(bound("3.9"), "expert_capacity");
  EXPECT_EQ(bound("4"), "any_load");
}

TEST_F(PlanCommand, MemoryOfAHostGoesByTheLoadOfExperts) {
  const auto at = [&](const Words& skew) {
    return json_of(with(experts(), with({"--no-time"}, skew)));
  };
  const Json even = at({}), uneven = at({"--moe-skew", "1.5"});
  EXPECT_EQ(uneven["experts"]["rows"].as_integer(), 4 * 32 * 2);
  EXPECT_EQ(uneven["experts"]["bound"].as_string(), "any_load");
  EXPECT_FALSE(uneven["experts"]["fixed"].as_bool());
  const Json::Array& loads = uneven["experts"]["loads"].as_array();
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0]["load"].as_number(), 1.5);
  EXPECT_EQ(loads[0]["rows"].as_integer(), 96);
  EXPECT_EQ(loads[1]["load"].as_number(), 4);
  EXPECT_EQ(loads[1]["rows"].as_integer(), 256);
  EXPECT_EQ(even["experts"]["loads"].as_array()[0]["rows"].as_integer(), 64);
  EXPECT_LT(rank_bytes(even, 0), rank_bytes(uneven, 0));
  EXPECT_LT(rank_bytes(uneven, 0), rank_bytes(uneven, 1));
  EXPECT_EQ(rank_bytes(even, 1), rank_bytes(uneven, 1));
  // The figures are those of the expected load.
  EXPECT_EQ(rank_bytes(uneven, 0), uneven["memory"]["rank"]["total"].as_integer());
}

TEST_F(PlanCommand, TheFirstLinesNameEveryAxis) {
  Words words = with(experts(), {"--no-time"});
  words.erase(std::ranges::find(words, "--ranks"), std::ranges::find(words, "--ranks") + 2);
  Outcome page = place_.run(words);  // for as many ranks as the experts need
  EXPECT_NE(page.out.find("4 ranks (tensor 1 x pipeline 1 x data 4; experts 4 x tensor 1)"),
            std::string::npos)
      << page.out << page.err;
  EXPECT_NE(page.out.find("Memory per rank: "), std::string::npos);
  EXPECT_NE(page.out.find("; with the worst expert load "), std::string::npos) << page.out;
}

TEST_F(PlanCommand, ARecipeIsPlannedForItsGpu) {
  const Words of = {"--tokenizer-type", "NullTokenizer", "--vocab-size", "32000"};
  const Outcome page = place_.run(with({"plan", "--recipe", "llama2_7b_8xa100"}, of));
  EXPECT_NE(page.out.find("A100: there is no GPU here, so the recipe's of 79 GiB is assumed"),
            std::string::npos)
      << page.out << page.err;
  EXPECT_NE(page.out.find("n/a (which has no A100 to measure)"), std::string::npos);
  EXPECT_EQ(page.out.find("H200"), std::string::npos);
}

// If each rank holds all experts, the fullest expert decides.
TEST_F(PlanCommand, TheTimeOfBothLoadsIsEstimated) {
  const Outcome page = place_.run(with(small(), {"--num-experts", "4", "--moe-ffn-hidden-size",
                                                 "32", "--moe-skew", "2", "--train-iters", "2"}));
  EXPECT_EQ(page.code, 0) << page.err;
  const size_t table = page.out.find("Load of the busiest expert / mean ");
  ASSERT_NE(table, page.out.npos) << page.out;
  const std::string text = page.out.substr(table, page.out.find("\n\n", table) - table);
  EXPECT_NE(text.find("\n  step "), text.npos) << text;
  EXPECT_EQ(text.find("n/a"), text.npos) << text;
  EXPECT_NE(text.find("memory does not depend on the load"), text.npos) << text;
}

TEST_F(PlanCommand, LoadsOfExpertsThatCannotBeAreRefused) {
  const auto refused = [&](const Words& flags, const std::string& part) {
    expect_error(with(experts(), with(flags, {"--no-time"})), part);
  };
  refused({"--moe-skew", "0.5"}, "--moe-skew is 0.5; it must be 1 (an even load) or more");
  refused({"--moe-skew", "nan"}, "--moe-skew");
  refused({"--moe-skew", "4.5"}, "--moe-skew is 4.5; it must lie in [1, 4]");
  refused({"--moe-skew", "2", "--moe-expert-rank-capacity-factor", "1.5"},
          "[1, 1.5], the load that --moe-expert-rank-capacity-factor 1.5 allows; a step that needs "
          "more fails");
  refused({"--moe-skew", "2", "--moe-expert-capacity-factor", "1.25"},
          "[1, 1.25], the load that --moe-expert-capacity-factor 1.25 allows");
  expect_error(with(small(), {"--moe-skew", "2", "--no-time"}), "no layer has experts");
  expect_error(with(small(), {"--moe-skew", "4.5", "--num-experts", "8", "--no-time"}),
               "where every token is routed to the same experts");
}

// `train` prints the same plan before the first step.
TEST_F(PlanCommand, TrainPrintsItFirst) {
  Words words =
      with(small(), {"--mock-data", "--lr", "1e-3", "--train-iters", "2", "--log-interval", "1"});
  words[0] = "train";
  std::string line = "'" MEGATRON_BINARY "'";
  for (const std::string& word : words) line += " " + word;
  ASSERT_EQ(std::system((line + " > '" + (place_ / "output") + "' 2>&1 < /dev/null").c_str()), 0);
  const std::string output = read_file(place_ / "output");
  const size_t plan = output.find("plan: 166k parameters"),
               memory = output.find("memory per process: "),
               step = output.find("iteration      1/2");
  ASSERT_NE(step, output.npos) << output;
  EXPECT_LT(plan, memory) << output;
  EXPECT_LT(memory, step) << output;
}

// The vocabulary size assumed for a missing tokenizer is reported once, with its cause.
TEST_F(PlanCommand, TellsAnAssumedVocabularyOnce) {
  const Words words = {"plan",
                       "--num-layers",
                       "2",
                       "--hidden-size",
                       "64",
                       "--num-attention-heads",
                       "4",
                       "--seq-length",
                       "32",
                       "--max-position-embeddings",
                       "32",
                       "--micro-batch-size",
                       "1",
                       "--tokenizer-type",
                       "GPT2BPETokenizer",
                       "--vocab-file",
                       place_ / "absent.json",
                       "--merge-file",
                       place_ / "absent.txt",
                       "--no-time"};
  const Json plan = json_of(words);
  std::vector<std::string> causes;
  for (const Json& note : plan["derived"].as_array())
    if (note["flag"].as_string() == "vocab-size") causes.push_back(note["cause"].as_string());
  ASSERT_EQ(causes.size(), 1u);
  EXPECT_NE(causes[0].find("absent.json does not exist"), std::string::npos) << causes[0];
}

// GPT-3 (Brown et al. 2020) with Megatron-LM's vocabulary, which is too large for any test machine.
TEST_F(PlanCommand, Gpt3InAGigabyte) {
  const Outcome r = place_.run(
      with(flags(96, 12288, 96, 2048, 51200), {"--bf16", "--json", "--global-batch-size", "1536"}));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_LT(r.bytes, 1'000'000'000);
  const Json plan = Json::parse(r.out);
  EXPECT_EQ(plan["parameters"]["total"].as_integer(), 174'615'846'912);
  EXPECT_EQ(plan["flops"]["megatron"].as_integer(), 3340597800160198656);
  EXPECT_FALSE(plan["memory"]["fits"].as_bool());
  EXPECT_FALSE(plan["memory"]["suggestions"].as_array().empty());
}

}  // namespace
}  // namespace megatron::testing
