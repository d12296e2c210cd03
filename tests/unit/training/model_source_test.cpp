// --model-config: a model from the config.json of a file or of a name.
#include "training/model_source.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/files.h"
#include "models/model.h"
#include "text.h"
#include "training/settle.h"

namespace megatron::training {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_contains;

settings::TrainSettings described_by(const std::string& config) {
  settings::TrainSettings s;
  s.run.model_config = config;
  s.batch.seq_length = 64;
  s.batch.micro_batch_size = 1;
  return s;
}

TEST(ModelSource, ReadsNamesAndFiles) {
  const ShapeSource named = config_source(described_by("twins/qwen3_0.6b"));
  EXPECT_TRUE(named);
  EXPECT_EQ(named.directory, "");
  const std::string file =
      fs::temp_directory_path() / ("config_" + std::to_string(::getpid()) + ".json");
  write_file(file, named.config.dump());
  settings::TrainSettings s = described_by(file);
  s.shape.vocab_size = 300;
  const ShapeSource read = config_source(s);
  fs::remove(file);
  EXPECT_EQ(read.name, file);
  EXPECT_EQ(models::model_from_config_json(read.config)->vocab_size(), 300);
  EXPECT_EQ(models::model_from_config_json(named.config)->family(), "qwen3");
}

TEST(ModelSource, ErrorsNameWhatThereIs) {
  expect_contains(
      error_of([] { config_source(described_by("qwen3_0.6")); }),
      {"--model-config is qwen3_0.6", "not a file", "did you mean qwen3_0.6b?", "llama2_7b"});
  const std::string file =
      fs::temp_directory_path() / ("config_" + std::to_string(::getpid()) + ".json");
  write_file(file, "[]");
  settings::TrainSettings s = described_by(file);
  s.shape.vocab_size = 300;
  expect_contains(error_of([&] { config_source(s); }), {file, "no vocab_size", "--vocab-size 300"});
  fs::remove(file);
}

// Like flags, a name is checked before any file is opened.
TEST(ModelSource, SettingsThatDoNotGoWithItAreRefused) {
  settings::TrainSettings s = described_by("twins/qwen3_0.6b");
  check_settings(s, true);
  s.parallel.pipeline_parallel = 3;
  expect_contains(error_of([&] { check_settings(s, true); }), {"--pipeline-model-parallel-size"});
  s.parallel.pipeline_parallel = 1;
  s.batch.seq_length = 1 << 20;
  expect_contains(error_of([&] { check_settings(s, true); }), {"--seq-length is 1048576"});
  s.batch.seq_length = 64;
  s.shape.swiglu = true;
  expect_contains(error_of([&] { check_settings(s, true); }),
                  {"--swiglu and --model-config twins/qwen3_0.6b both give"});
  s.shape.swiglu = false;
  s.run.model = "dir";
  expect_contains(error_of([&] { check_settings(s, true); }),
                  {"--model dir and --model-config twins/qwen3_0.6b both give"});
}

}  // namespace
}  // namespace megatron::training
