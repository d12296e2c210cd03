// Runs that time the algorithms of their GEMMs and use the fastest. Which one is fastest is a
// setting of the stand-in (cuda_shim/control.h) and differs between GPUs in some tests.
#include <fmt/core.h>

#include <cstdlib>

#include "base/files.h"
#include "cuda/cli/planted.h"
#include "cuda/cli/training_runs.h"
#include "free_port.h"
#include "text.h"

namespace megatron::testing {
namespace {

const std::string kOneLayer = "--num-layers 1 --hidden-size 32 --seq-length 32 ";
const std::string kSaved = "--save run --load run --save-interval 2 ";

std::vector<Step> tuned(const Workplace& place, int fast, int steps, const std::string& flags,
                        std::string* printed = nullptr) {
  const Planted planted("CUDA_SHIM_FAST_ALGORITHM", std::to_string(fast));
  return train(place, "cuda", steps, kOneLayer + "--gemm-tuning on " + flags, printed);
}

std::string state_path(const Workplace& place) {
  return place / "run/iter_0000002/trainer_state.json";
}

Json choices(const Workplace& place, const std::string& folder = "run") {
  return Json::parse(read_file(place / (folder + "/gemm_choices.json")));
}

// Runs on two ranks with a GPU each. On rank r, the algorithm at place fast + r * step is the
// fastest.
std::vector<Step> tuned_on_two(const Workplace& place, int fast, int step, const std::string& flags,
                               std::string* printed = nullptr) {
  const Planted devices("CUDA_SHIM_DEVICES", "2"),
      planted("CUDA_SHIM_FAST_ALGORITHM_STEP", std::to_string(step));
  return tuned(place, fast, 2, "--ranks 2 " + flags, printed);
}

TEST(GemmTuning, ChoosesOtherAlgorithmsAndSoOtherBits) {
  const Workplace place;
  std::string printed;
  const std::vector<Step> plain = train(place, "cuda", 3, kOneLayer);
  EXPECT_EQ(tuned(place, 0, 3, "", &printed), plain) << "the first of each list is the fastest";
  EXPECT_TRUE(has(printed, "--gemm-tuning on ")) << printed;
  const std::vector<Step> second = tuned(place, 1, 3, "");
  EXPECT_NE(second, plain);
  EXPECT_EQ(tuned(place, 1, 3, ""), second);
  const std::string graphs = "--cuda-graph-impl local --cuda-graph-warmup-steps 1";
  EXPECT_EQ(tuned(place, 1, 3, graphs), second) << "what is recorded was timed before";
}

// If the first algorithm of each list is the fastest, the bits equal those of a run without timing.
TEST(GemmTuning, WhatIsTimedBeforeTheFirstStepChangesNothing) {
  const Workplace place;
  const Planted devices("CUDA_SHIM_DEVICES", "2");
  for (const std::string flags :
       {"--optimizer muon --fp16 --tensor-model-parallel-size 2",
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
        "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "
        "--iterations-to-skip 0"}) {
    const std::string ranks = "--ranks 2 " + flags;
    EXPECT_EQ(tuned(place, 0, 2, ranks), train(place, "cuda", 2, kOneLayer + ranks)) << flags;
  }
}

TEST(GemmTuning, ProductsOfLaterStepsAreTimedToo) {
  const Workplace place;
  tuned(place, 1, 1, "--save run --optimizer muon --bf16 --rampup-batch-size 2 2 4");
  const Json products = choices(place)["products"];
  int added = 0, of_muon = 0;
  for (const auto& [product, algorithm] : products.as_object()) {
    added += has(product, ", added");
    of_muon += has(product, "bf16 to f32: 1 x [32,32,32], b transposed");
  }
  EXPECT_GT(added, 0) << "the first step has one micro-batch, later ones have two";
  EXPECT_GT(of_muon, 0) << "of its update";
}

TEST(GemmTuning, AResumedRunKeepsTheChoices) {
  const Workplace place;
  const std::vector<Step> whole = tuned(place, 1, 4, "");
  std::vector<Step> parts = tuned(place, 1, 2, kSaved);
  std::string printed;
  for (const Step& step : tuned(place, 0, 4, kSaved, &printed)) parts.push_back(step);
  EXPECT_EQ(parts, whole);
  EXPECT_FALSE(has(printed, "uninterrupted")) << printed;
  const Json kept = Json::parse(read_file(state_path(place)))["gemm_tuning"];
  EXPECT_EQ(kept["device"].as_string(), "CUDA shim on the CPU");
  EXPECT_EQ(kept["library"].as_string(), "cuBLASLt 130100");
  EXPECT_FALSE(kept["products"].as_object().empty());
  EXPECT_EQ(kept, choices(place));
}

TEST(GemmTuning, ARunThatEndedInItsFirstStepIsBegunAgainWithItsChoices) {
  const Workplace place;
  const std::string flags = kOneLayer + "--gemm-tuning on " + kSaved;
  const std::vector<Step> whole = tuned(place, 1, 2, "--save other --save-interval 2");
  {
    const Planted planted("CUDA_SHIM_FAST_ALGORITHM", "1");
    const Outcome r = place.run(with(words("train --device cuda --train-iters 2 --init-method-std "
                                           "1e38 " +
                                           std::string(kModel)),
                                     words(flags)));
    EXPECT_TRUE(has(r.err, "iteration 1: the loss is")) << r.out << r.err;
  }
  EXPECT_FALSE(place.listing().contains("run/iter_0000002"));
  EXPECT_EQ(choices(place), choices(place, "other"));
  std::string printed;
  fs::copy(place / "run", place / "off");
  train(place, "cuda", 1, kOneLayer + "--save off", &printed);
  EXPECT_TRUE(has(printed, "the saved GEMM algorithms are not used (this run has")) << printed;
  EXPECT_EQ(tuned(place, 0, 2, kSaved, &printed), whole);
  EXPECT_TRUE(has(printed, "--gemm-tuning: 0 GEMMs were timed")) << printed;
}

TEST(GemmTuning, DamagedChoicesAreAnError) {
  const Workplace place;
  tuned(place, 1, 1, "--save run");
  const std::string path = place / "run/gemm_choices.json";
  Json saved = Json::parse(read_file(path));
  saved.set("products", Json::Object{{"a product", "12x4"}});
  std::filesystem::remove_all(place / "run/iter_0000001");
  std::filesystem::remove(place / "run/latest_checkpointed_iteration.txt");
  write_file(path, "[]");
  const std::string flags =
      "train --device cuda --train-iters 1 --gemm-tuning on " + kSaved + kOneLayer + kModel;
  const Outcome empty = place.run(words(flags));
  EXPECT_NE(empty.code, 0);
  EXPECT_TRUE(has(empty.err, "run/gemm_choices.json contains no GEMMs: it is damaged"))
      << empty.err;
  write_file(path, saved.dump());
  const Outcome r = place.run(words(flags));
  EXPECT_NE(r.code, 0);
  EXPECT_TRUE(has(r.err, "run/gemm_choices.json: a product is \"12x4\"; expected an algorithm"))
      << r.err;
}

// Rank 1 alone would choose differently, but data-parallel ranks use the choice of the first.
TEST(GemmTuning, RanksFollowTheFirstOne) {
  const Workplace place;
  const std::vector<Step> first = tuned_on_two(place, 0, 0, ""),
                          second = tuned_on_two(place, 1, 0, "");
  EXPECT_NE(first, second);
  EXPECT_EQ(tuned_on_two(place, 1, -1, "--save run"), second);
  std::string printed;
  const std::string halves = "--tensor-model-parallel-size 2 --vocab-size 204 ";
  EXPECT_EQ(tuned_on_two(place, 0, 0, halves, &printed), tuned_on_two(place, 0, 1, halves));
  EXPECT_TRUE(has(printed, "--gemm-tuning: ")) << printed;
  std::filesystem::remove_all(place / "run/iter_0000002");
  std::filesystem::remove(place / "run/latest_checkpointed_iteration.txt");
  EXPECT_EQ(tuned_on_two(place, 0, 0, kSaved), second) << "the choices of the --save folder";
}

// The output layer's GEMM exists only on the second stage, which chooses for itself.
TEST(GemmTuning, StagesChooseWhatTheyAloneHave) {
  const Workplace place;
  const std::string two = "--num-layers 2 --pipeline-model-parallel-size 2 --save ";
  const std::vector<Step> mixed = tuned_on_two(place, 1, -1, two + "mixed");
  EXPECT_NE(tuned_on_two(place, 0, 0, two + "first"), mixed);
  EXPECT_NE(tuned_on_two(place, 1, 0, two + "second"), mixed);
  const Json products = choices(place, "mixed")["products"],
             first = choices(place, "first")["products"],
             second = choices(place, "second")["products"];
  int of_first = 0, of_second = 0;
  for (const auto& [product, algorithm] : products.as_object()) {
    const bool vocabulary = has(product, "203");
    EXPECT_EQ(algorithm, (vocabulary ? first : second)[product]) << product;
    ++(vocabulary ? of_first : of_second);
  }
  EXPECT_EQ(of_first, 4) << "logits, and the gradients of input and weight, stored and added";
  EXPECT_GT(of_second, of_first);
}

TEST(GemmTuning, RanksWithDifferentLibrariesAreNotTuned) {
  const Workplace place;
  const std::string both =
      "CUDA_SHIM_DEVICES=2 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 "
      "MASTER_ADDR=localhost MASTER_PORT=" +
      std::to_string(free_port()) + " ";
  const auto process = [&](const std::string& variables) {
    return both + variables + " " MEGATRON_BINARY " train --device cuda --train-iters 1 " +
           "--gemm-tuning on --save run " + kOneLayer + kModel;
  };
  const std::string out = place / "out";
  const int status =
      std::system(fmt::format("cd {} && {{ {} & {}; wait; }} > out 2>&1", place.path(),
                              process("RANK=1 LOCAL_RANK=1 CUDA_SHIM_CUBLASLT=120500"),
                              process("RANK=0 LOCAL_RANK=0"))
                      .c_str());
  const std::string printed = read_file(out);
  EXPECT_EQ(status, 0) << printed;
  EXPECT_TRUE(has(printed,
                  "--gemm-tuning has no effect, because all ranks need the same GPU and library: "
                  "rank 0 has CUDA shim on the CPU, cuBLASLt 130100, and rank 1 has CUDA shim on "
                  "the CPU, cuBLASLt 120500"))
      << printed;
  EXPECT_FALSE(place.listing().contains("run/gemm_choices.json"));
}

TEST(GemmTuning, ChoicesOfAnotherLibraryAreNotUsed) {
  const Workplace place;
  tuned(place, 1, 2, kSaved);
  std::string printed;
  const Planted other("CUDA_SHIM_CUBLASLT", "120500");
  tuned(place, 1, 3, kSaved, &printed);
  EXPECT_TRUE(
      has(printed,
          "they are for CUDA shim on the CPU, cuBLASLt 130100, and this is CUDA shim on the "
          "CPU, cuBLASLt 120500"))
      << printed;
}

TEST(GemmTuning, AResumedRunSaysWhereTheChoicesCannotBeUsed) {
  const Workplace place;
  std::string printed;
  tuned(place, 1, 2, kSaved);
  const std::string once = "--load run ";
  train(place, "cuda", 3, kOneLayer + once, &printed);
  EXPECT_TRUE(has(printed, "algorithms are not used (this run has --gemm-tuning off)")) << printed;
  train(place, "cuda", 2, kOneLayer + "--save plain --save-interval 2");
  tuned(place, 1, 3, "--load plain", &printed);
  EXPECT_TRUE(has(printed, "the run that wrote the checkpoint did not use it")) << printed;
}

}  // namespace
}  // namespace megatron::testing
