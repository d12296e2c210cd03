// Runs that start from golden directories of Hugging Face's families: they are killed, resumed with
// other layouts, and save directories of the same family.
#pragma once

#include <algorithm>
#include <array>

#include "base/files.h"
#include "checkpoint/model_directory.h"
#include "dist/training/runs.h"
#include "unit/models/family_models.h"

namespace megatron::training {

struct FamilyRun {
  const char* name;
  DType type;
};

inline void PrintTo(const FamilyRun& run, std::ostream* out) { *out << run.name; }
inline std::string name_of(const ::testing::TestParamInfo<FamilyRun>& info) {
  return std::string(info.param.name) + "_" + std::string(name(info.param.type));
}
inline std::vector<FamilyRun> in_both_types(const std::vector<const char*>& names) {
  std::vector<FamilyRun> all;
  for (const char* name : names)
    for (const DType type : {DType::f32, DType::bf16}) all.push_back({name, type});
  return all;
}

// Norm of the difference over all tensors.
inline double norm_between(const Tensors& a, const Tensors& b) {
  double squares = 0;
  for (const auto& [tensor, values] : b)
    for (size_t i = 0; i < values.size(); ++i)
      squares += (a.at(tensor).at(i) - values[i]) * (a.at(tensor).at(i) - values[i]);
  return std::sqrt(squares);
}

class FamilyTraining : public ::testing::TestWithParam<FamilyRun> {
 protected:
  static constexpr int64_t kSteps = 20, kInterval = 6, kKilled = 9, kSaved = 6;

  // Sequences are longer than the windows of the golden directories and, if a family's angles
  // depend on the length, than the original context.
  settings::TrainSettings settings(const std::string& folder) const {
    settings::TrainSettings s = tiny_llama();
    s.shape = {};
    s.run.model = directory();
    s.checkpoint.finetune = true;
    s.precision.bf16 = GetParam().type == DType::bf16;
    s.batch.micro_batch_size = 1;
    s.batch.global_batch_size = 4;
    s.batch.train_iters = kSteps;
    s.optimizer.lr = 1e-3;
    s.runtime.ranks.reset();  // set to the product of the sizes
    s.checkpoint.save = s.checkpoint.load = folder_ / folder;
    s.checkpoint.save_interval = kInterval;
    s.log.log_interval = 1;
    return s;
  }
  std::string directory() const { return testing::family_directory(GetParam().name); }

  // Trains on one rank without interruption, and makes a run that is killed between two saves.
  void SetUp() override {
    const TrainResult all = run(settings("whole"));
    whole_ = losses(all);
    ASSERT_EQ(whole_.size(), static_cast<size_t>(kSteps));
    saved_ = all.saved;
    struct Killed {};
    TrainHooks hooks{.peak = 1e12};
    hooks.after_step = [](const IterationReport& report) {
      if (report.iteration == kKilled) throw Killed();
    };
    EXPECT_THROW(train(settings("killed"), hooks), Killed);
  }

  // Resumes the killed run with another layout.
  TrainResult resumed(const std::string& flags) {
    const std::string folder = "resumed" + std::to_string(count_++);
    std::filesystem::copy(folder_ / "killed", folder_ / folder,
                          std::filesystem::copy_options::recursive);
    TrainResult result = run(with_flags(settings(folder), flags));
    EXPECT_EQ(result.first_iteration, kSaved) << flags;
    return result;
  }
  std::vector<double> whole_tail() const { return {whole_.begin() + kSaved, whole_.end()}; }

  // Compares every file except trainer_state.json, which names the layout.
  void expect_same_files(const std::string& a, const std::string& b) const {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(a)) {
      const std::string file = "/" + entry.path().filename().string();
      if (file == "/trainer_state.json") continue;
      EXPECT_TRUE(read_file(a + file) == read_file(b + file)) << a + file << " and " << b + file;
      ++files;
    }
    EXPECT_GE(files, 4);
  }

  // With steps of one micro-batch, neither another schedule nor another division of the state
  // changes a bit.
  void expect_bits() {
    const int64_t layers =
        models::model_from_config_json(testing::family_config(GetParam().name))->num_layers();
    const TrainResult stages = resumed(fmt::format(
        "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers {}", layers - 1));
    EXPECT_TRUE(same_bits(losses(stages), whole_tail()));
    expect_same_files(stages.saved, saved_);
    const std::string two = "--ranks 2 --micro-batch-size 2";
    const TrainResult replicas = resumed(two),
                      sharded =
                          resumed(two + " --data-parallel-sharding-strategy optim_grads_params");
    EXPECT_TRUE(same_bits(losses(sharded), losses(replicas)));
    expect_same_files(sharded.saved, replicas.saved);
  }

  // Sums are split differently. In bf16, moments may end as far from those of an f32 run as one
  // rank's do.
  void expect_near(const std::string& flags) {
    const TrainResult found = resumed(flags);
    if (GetParam().type == DType::f32) {
      EXPECT_LE(distance(losses(found), whole_tail()), tolerance::kLayoutFp32) << flags;
      return;
    }
    settings::TrainSettings s = settings("f32");
    s.precision.bf16 = false;
    const Tensors oracle = saved_tensors(run(s).saved).states;
    EXPECT_LE(norm_between(saved_tensors(found.saved).states, oracle),
              tolerance::kBf16ErrorFactor * norm_between(saved_tensors(saved_).states, oracle))
        << flags;
  }

  // Compares config.json except for the stored type, names and shapes of tensors, and other files.
  void expect_same_family() const {
    const checkpoint::ModelDirectory before(directory()), after(saved_);
    Json config = before.config();
    config.set(config.contains("torch_dtype") ? "torch_dtype" : "dtype",
               GetParam().type == DType::bf16 ? "bfloat16" : "float32");
    EXPECT_EQ(after.config(), config);
    const auto sorted = [](std::vector<std::string> names) {  // f32 tensors come first in a file
      std::ranges::sort(names);
      return names;
    };
    EXPECT_EQ(sorted(after.tensor_names()), sorted(before.tensor_names()));
    for (const std::string& tensor : before.tensor_names()) {
      ASSERT_NE(after.find(tensor), nullptr) << tensor;
      EXPECT_EQ(after.find(tensor)->shape, before.find(tensor)->shape) << tensor;
      // The type in which transformers stores it, or in which it was trained.
      const bool wide =
          std::ranges::any_of(std::array{".e_score_correction_bias", ".A_log", ".dt_bias", ".D"},
                              [&](const char* name) { return tensor.ends_with(name); });
      EXPECT_EQ(after.find(tensor)->dtype, wide ? DType::f32 : GetParam().type) << tensor;
    }
    EXPECT_EQ(read_file(saved_ + "/generation_config.json"),
              read_file(directory() + "/generation_config.json"));
  }

  // Expects training to change every tensor.
  void expect_learned() const {
    EXPECT_LT(whole_.back(), whole_.front());
    const Tensors before = saved_tensors(directory()).weights,
                  after = saved_tensors(saved_).weights;
    for (const auto& [tensor, values] : before) EXPECT_NE(after.at(tensor), values) << tensor;
  }

  const TemporaryDirectory folder_;
  std::vector<double> whole_;
  std::string saved_;
  int count_ = 0;
};

TEST_P(FamilyTraining, GoesOnInOtherLayoutsAndSavesItsFamily) {
  expect_learned();
  expect_same_family();
  expect_bits();
  if (std::string(GetParam().name) != "gpt_neox")  // has three heads
    expect_near("--tensor-model-parallel-size 2 --sequence-parallel");
}

}  // namespace megatron::training
