// Runs that time the algorithms of their GEMMs, and go on with what they chose. Which one is the fastest
// is a setting of the stand-in (cuda_shim/control.h).
#include <cstdlib>

#include "cuda/cli/training_runs.h"
#include "text.h"

namespace megatron::testing {
namespace {

// A setting of the programs that start while it lives.
class PlantedSetting {
 public:
  PlantedSetting(std::string variable, const std::string& value) : variable_(std::move(variable)) {
    ::setenv(variable_.c_str(), value.c_str(), 1);
  }
  ~PlantedSetting() { ::unsetenv(variable_.c_str()); }
  PlantedSetting(const PlantedSetting&) = delete;
  PlantedSetting& operator=(const PlantedSetting&) = delete;

 private:
  const std::string variable_;
};

const std::string kOneLayer = "--num-layers 1 --hidden-size 32 --seq-length 32 ";
const std::string kSaved = "--save run --load run --save-interval 2 ";

std::vector<Step> tuned(const Workplace& place, int fast, int steps, const std::string& flags,
                        std::string* printed = nullptr) {
  const PlantedSetting planted("CUDA_SHIM_FAST_ALGORITHM", std::to_string(fast));
  return train(place, "cuda", steps, kOneLayer + "--gemm-tuning on " + flags, printed);
}

std::string state_path(const Workplace& place) {
  return place / "run/iter_0000002/trainer_state.json";
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

TEST(GemmTuning, AResumedRunKeepsTheChoices) {
  const Workplace place;
  const std::vector<Step> whole = tuned(place, 1, 4, "");
  std::vector<Step> parts = tuned(place, 1, 2, kSaved);
  std::string printed;
  for (const Step& step : tuned(place, 0, 4, kSaved, &printed)) parts.push_back(step);
  EXPECT_EQ(parts, whole);
  EXPECT_FALSE(has(printed, "without interruption")) << printed;
  const Json kept = Json::parse(read_file(state_path(place)))["gemm_tuning"];
  EXPECT_EQ(kept["device"].as_string(), "CUDA shim on the CPU");
  EXPECT_EQ(kept["library"].as_string(), "cuBLASLt 130100");
  EXPECT_FALSE(kept["products"].as_object().empty());
}

TEST(GemmTuning, ChoicesOfAnotherLibraryAreNotUsed) {
  const Workplace place;
  tuned(place, 1, 2, kSaved);
  std::string printed;
  const PlantedSetting other("CUDA_SHIM_CUBLASLT", "120500");
  tuned(place, 1, 3, kSaved, &printed);
  EXPECT_TRUE(has(printed,
                  "they are of CUDA shim on the CPU, cuBLASLt 130100, and this is CUDA shim on the "
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
  tuned(place, 1, 3, once + "--ranks 2", &printed);
  EXPECT_TRUE(has(printed, "algorithms are not used (this run has 2 ranks)")) << printed;
  EXPECT_TRUE(has(printed, "2 ranks might choose different algorithms")) << printed;

  train(place, "cuda", 2, kOneLayer + "--save plain --save-interval 2");
  tuned(place, 1, 3, "--load plain", &printed);
  EXPECT_TRUE(has(printed, "the checkpoint is of a run without it")) << printed;
}

}  // namespace
}  // namespace megatron::testing
