// Plans of runs on a GPU, made on a machine without one.
#include <gtest/gtest.h>

#include <sstream>

#include "base/json.h"
#include "golden/cli/process.h"

namespace megatron::testing {
namespace {

std::vector<std::string> plan(const std::string& flags) {
  std::istringstream in("plan --device cuda --bf16 --mock-data --threads 1 " + flags);
  std::vector<std::string> all;
  for (std::string word; in >> word;) all.push_back(word);
  return all;
}

const std::string kLlama8b =
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --vocab-size 128256 --seq-length 4096 "
    "--swiglu --normalization RMSNorm --position-embedding-type rope --rotary-base 500000 "
    "--disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 "
    "--attention-dropout 0 --micro-batch-size 1 --global-batch-size 8 ";

// The master weight is the bf16 value and 16 more bits, so that 8 billion parameters take 16 bytes
// each. The first recompute setting is Megatron's, the last that of `bench step --preset llama-8b`.
class PlanGpu8b : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Recompute, PlanGpu8b,
                         ::testing::Values("--recompute-activations",
                                           "--recompute-granularity selective --recompute-modules "
                                           "mlp layernorm",
                                           "--recompute-granularity selective --recompute-modules "
                                           "mlp_act layernorm"));

TEST_P(PlanGpu8b, FitsOneH200) {
  const Workplace place;
  const Outcome r = place.run(plan(kLlama8b + "--json " + GetParam()));
  ASSERT_EQ(r.code, 0) << r.err;
  const Json memory = Json::parse(r.out)["memory"];
  EXPECT_TRUE(memory["fits"].as_bool()) << r.out;
  EXPECT_EQ(memory["gpu"]["name"].as_string(), "H200");
  EXPECT_FALSE(memory["gpu"]["found"].as_bool());
  EXPECT_EQ(memory["gpu"]["bytes"].as_integer(), int64_t{139} << 30);
  EXPECT_LE(memory["gpu"]["needed"].as_integer(), int64_t{139} << 30);
  EXPECT_GT(memory["gpu"]["needed"].as_integer(), 16 * int64_t{8'030'000'000});
  EXPECT_LT(memory["process"].as_integer(), 1'000'000'000);
  EXPECT_TRUE(Json::parse(r.out)["time"]["step_seconds"].is_null());
}

// The preset fits with its flags, and by estimate takes less than 320 ms for 4096 tokens.
TEST(PlanGpu, PresetsOf8BillionParametersFitOneH200) {
  const Workplace place;
  for (const auto& [preset, sequences] : {std::pair{"llama-8b", 1}, {"llama-8b-mb2", 2}}) {
    const Outcome r = place.run(plan(std::string("--json --preset ") + preset));
    ASSERT_EQ(r.code, 0) << r.err;
    const Json all = Json::parse(r.out);
    EXPECT_TRUE(all["memory"]["fits"].as_bool()) << preset;
    EXPECT_LE(all["time"]["assumed"]["micro_batch_seconds"].as_number(), 0.320 * sequences)
        << preset;
  }
}

// 4096 tokens of 8 billion parameters: products run at 84% of 989 TFLOP/s (6.98 billion parameters
// of linear layers); the other work moves bytes or is computed twice.
TEST(PlanGpu, TheTimeOfAMicroBatchIsAssumedByItem) {
  const Workplace place;
  const auto assumed = [&](const std::string& flags) {
    const Outcome r = place.run(plan(kLlama8b + "--json " + flags));
    EXPECT_EQ(r.code, 0) << r.err;
    const Json all = Json::parse(r.out);
    return all["time"]["assumed"];
  };
  const auto seconds = [](const Json& of, const std::string& name) {
    for (const Json& item : of["items"].as_array())
      if (item["item"].as_string() == name) return item["seconds"].as_number();
    return 0.0;
  };
  const std::string selective = "--recompute-granularity selective --recompute-modules ";
  const Json none = assumed(""), light = assumed(selective + "mlp_act layernorm"),
             products = assumed(selective + "mlp layernorm");
  EXPECT_NEAR(seconds(none, "linear layers"), 6 * 6.979e9 * 4096 / 740e12, 1e-3);
  EXPECT_EQ(seconds(none, "recompute"), 0);
  // Recompute repeats the products of gate and up.
  EXPECT_NEAR(seconds(products, "recompute") - seconds(light, "recompute"),
              2.0 * 32 * 4096 * 28672 * 4096 / 740e12, 1e-3);
  EXPECT_NEAR(seconds(light, "recompute"), 4.2e-3, 1e-3);
  EXPECT_EQ(seconds(light, "linear layers"), seconds(none, "linear layers"));
  // 28 bytes per parameter for AdamW, and 4 for the norm.
  EXPECT_NEAR(light["optimizer"]["seconds"].as_number(), 32 * 8.03e9 / 4.2e12, 1e-3);
  EXPECT_NEAR(
      light["step_seconds"].as_number(),
      8 * light["micro_batch_seconds"].as_number() + light["optimizer"]["seconds"].as_number(),
      1e-9);
  EXPECT_GT(light["peak_share"].as_number(), products["peak_share"].as_number());
  EXPECT_LT(light["peak_share"].as_number(), 0.72);
  EXPECT_TRUE(assumed("--no-time").is_null());
}

// The buffers of experts have a fixed size; a fuller rank computes more.
TEST(PlanGpu, TheLoadOfExpertsChangesTheTimeAlone) {
  const Workplace place;
  const Outcome r = place.run(
      plan("--num-layers 2 --hidden-size 2048 --moe-ffn-hidden-size 4096 --num-attention-heads 16 "
           "--vocab-size 1000 --seq-length 2048 --num-experts 16 --moe-router-topk 2 --ranks 4 "
           "--expert-model-parallel-size 4 --micro-batch-size 1 --moe-skew 2 --json"));
  ASSERT_EQ(r.code, 0) << r.err;
  const Json all = Json::parse(r.out), experts = all["experts"];
  const Json &uneven = experts["loads"].as_array().at(0),
             &worst = experts["loads"].as_array().at(1);
  EXPECT_TRUE(experts["fixed"].as_bool());
  for (const Json* load : {&uneven, &worst})
    EXPECT_EQ((*load)["rank_bytes"].as_integer(), all["memory"]["rank"]["total"].as_integer());
  const auto seconds = [](const Json& load) { return load["step_seconds"].as_number(); };
  // Two products with 8192 more rows in each of two layers, once in forward and twice in backward.
  EXPECT_NEAR(seconds(worst) - seconds(uneven), 2 * 3 * 2 * 2.0 * 8192 * 2048 * 4096 / 715e12,
              1e-6);
  EXPECT_EQ(all["time"]["assumed"]["step_seconds"].as_number(), seconds(uneven));
}

// If buffers for any load are too large, the cause says so, and buffers for twice an even load are
// suggested.
TEST(PlanGpu, RoomForExpertsIsSaidAndSuggested) {
  const Workplace place;
  const auto memory = [&](const std::string& flags) {
    const Outcome r = place.run(
        plan("--num-layers 4 --hidden-size 1024 --moe-ffn-hidden-size 1024 --num-attention-heads 8 "
             "--vocab-size 1000 --seq-length 2048 --num-experts 64 --moe-router-topk 8 --ranks 8 "
             "--expert-model-parallel-size 8 --micro-batch-size 8 --global-batch-size 64 "
             "--device-memory 20 --no-time --json " +
             flags));
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.out)["memory"];
  };
  const Json any = memory("");
  EXPECT_FALSE(any["fits"].as_bool());
  EXPECT_NE(any["cause"].as_string().find("including 1048576 rows per layer for experts, enough "
                                          "for any load; an even load needs 131072"),
            std::string::npos)
      << any["cause"].as_string();
  std::string all;
  for (const Json& one : any["suggestions"].as_array()) all += one.as_string() + "\n";
  EXPECT_NE(all.find("--moe-expert-rank-capacity-factor 2 (needs "), std::string::npos) << all;
  EXPECT_TRUE(memory("--moe-expert-rank-capacity-factor 2")["fits"].as_bool());
}

// The suggestion recomputes the parts that cost the least work and still make the run fit.
TEST(PlanGpu, TheLeastRecomputeThatFitsIsSuggested) {
  const Workplace place;
  const auto suggested = [&](const std::string& flags) {
    const Outcome r = place.run(plan(kLlama8b + "--no-time --json " + flags));
    EXPECT_EQ(r.code, 0) << r.err;
    const Json memory = Json::parse(r.out)["memory"];
    std::string all;
    for (const Json& one : memory["suggestions"].as_array()) all += one.as_string() + "\n";
    return all;
  };
  const struct {
    const char *flags, *modules;
  } cases[] = {{"--device-memory 138",
                "--recompute-granularity selective --recompute-modules "
                "layernorm (needs "},
               {"--device-memory 136",
                "--recompute-granularity selective --recompute-modules "
                "mlp_act (needs "},
               {"--device-memory 134",
                "--recompute-granularity selective --recompute-modules "
                "mlp_act layernorm (needs "},
               {"--device-memory 127",
                "--recompute-granularity selective --recompute-modules "
                "mlp layernorm (needs "},
               {"--device-memory 127 --recompute-granularity selective --recompute-modules mlp_act "
                "layernorm",
                "--recompute-modules mlp layernorm (needs "}};
  for (const auto& it : cases) EXPECT_TRUE(suggested(it.flags).starts_with(it.modules)) << it.flags;
  EXPECT_EQ(suggested("--device-memory 120").find("selective"), std::string::npos);
}

// Without recompute, 8 billion parameters fit only if attention runs in smaller parts.
TEST(PlanGpu, AttentionRunsInLargerPartsWhereMemoryAllows) {
  struct Choice {
    std::string mib, cause;  // "": nothing was chosen
    int64_t needed = 0, scratch = 0;
    bool fits = false;
  };
  const Workplace place;
  const auto planned = [&](const std::string& flags) {
    const Outcome r = place.run(plan(kLlama8b + "--no-time --json " + flags));
    EXPECT_EQ(r.code, 0) << r.err;
    const Json all = Json::parse(r.out);
    Choice choice{.needed = all["memory"]["gpu"]["needed"].as_integer(),
                  .scratch = all["memory"]["rank"]["scratch"].as_integer(),
                  .fits = all["memory"]["fits"].as_bool()};
    for (const Json& note : all["derived"].as_array()) {
      if (note["flag"].as_string() != "attention-workspace-mib") continue;
      choice.mib = note["value"].as_string();
      choice.cause = note["cause"].as_string();
    }
    return choice;
  };
  const std::string recompute =
      "--recompute-granularity selective --recompute-modules mlp_act layernorm ";
  const Choice large = planned(recompute), small = planned("");
  EXPECT_EQ(large.mib, "1280");
  EXPECT_NE(large.cause.find(" remain free"), std::string::npos) << large.cause;
  EXPECT_EQ(small.mib, "768");
  EXPECT_NE(small.cause.find("more than the GPU has"), std::string::npos) << small.cause;
  EXPECT_TRUE(large.fits && small.fits);
  EXPECT_GT(large.scratch, small.scratch);

  const Choice given = planned("--attention-workspace-mib 768"),
               too_large = planned("--attention-workspace-mib 1280");
  EXPECT_EQ(given.mib, "");
  EXPECT_EQ(given.needed, small.needed);
  EXPECT_FALSE(too_large.fits);
  EXPECT_EQ(planned(recompute + "--attention-workspace-mib 1280").needed, large.needed);
  EXPECT_EQ(planned("--device-memory 192").mib, "1280");
}

TEST(PlanGpu, WhatDoesNotFitIsToldWithTheGpusMemory) {
  const Workplace place;
  const Outcome whole = place.run(plan(kLlama8b + "--micro-batch-size 2"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  for (const char* part : {"The run does NOT fit: it needs ", " per GPU, which has 149 GB",
                           "--micro-batch-size 1 (needs ", "there is no GPU here",
                           "Estimated on this machine: n/a (which has no GPU to measure)"})
    EXPECT_NE(whole.out.find(part), std::string::npos) << part << "\n" << whole.out;
  const Outcome larger = place.run(plan(kLlama8b + "--device-memory 192"));
  EXPECT_EQ(larger.out.find("NOT fit"), std::string::npos) << larger.out;
  EXPECT_NE(larger.out.find("from --device-memory"), std::string::npos) << larger.out;
  EXPECT_EQ(whole.out.find("Assumed for an H200"), std::string::npos) << whole.out;
  EXPECT_NE(larger.out.find("Assumed for an H200, not measured"), std::string::npos) << larger.out;
}

}  // namespace
}  // namespace megatron::testing
