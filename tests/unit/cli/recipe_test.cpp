// Named runs: --recipe has lower priority than files of --config and the command line.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "cli/options.h"
#include "settings/recipes.h"
#include "settings/settings.h"
#include "text.h"
#include "training/settle.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;
using testing::expect_contains;
using Words = std::vector<std::string>;

struct RecipeRun {
  settings::TrainSettings settings;
  Fields fields = settings.fields();
  Words notes;

  std::optional<int> read(const Words& arguments) {
    return parse_training("megatron train [flags]", "", fields, arguments, notes,
                          {.check = [&] { training::check_settings(settings, true); }});
  }
  std::string value(const std::string& name) { return fields.find(name)->get(); }
};

std::string recipe_error(const Words& arguments) {
  RecipeRun run;
  try {
    run.read(arguments);
    naming_places(run.fields, [&] {
      training::check_settings(run.settings, true);
      return 0;
    });
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string printed(const Words& arguments) {
  ::testing::internal::CaptureStdout();
  RecipeRun().read(arguments);
  std::fflush(stdout);
  return ::testing::internal::GetCapturedStdout();
}

TEST(Recipe, GivesFlagsThatOthersOverride) {
  const fs::path file = fs::temp_directory_path() / ("recipe_" + std::to_string(::getpid()));
  std::ofstream(file) << "lr: 1e-4\nclip-grad: 2\n";
  RecipeRun run;
  run.read({"--clip-grad", "3", "--config", file, "--recipe", "gemma2_9b_8xh100"});
  fs::remove(file);
  EXPECT_EQ(run.value("model-config"), "gemma2_9b");
  EXPECT_EQ(run.value("seq-length"), "8192");
  EXPECT_EQ(run.value("lr"), "0.0001");
  EXPECT_EQ(run.value("clip-grad"), "3");
}

// If flags conflict, the command line replaces the recipe's.
TEST(Recipe, GivesWayToAnotherModelAndLength) {
  RecipeRun run;
  run.read({"--recipe", "gemma2_9b_8xh100", "--model", "dir", "--train-samples", "9"});
  EXPECT_EQ(run.value("model-config"), "");
  EXPECT_EQ(run.value("train-iters"), "");
  std::string notes;
  for (const std::string& note : run.notes) notes += note + "\n";
  expect_contains(notes,
                  {"recipe gemma2_9b_8xh100:", "model-config gemma2_9b is overridden by --model\n",
                   "train-iters 1907349 is overridden by --train-samples\n"});
  RecipeRun other;
  other.read({"--recipe", "gpt2_124m_2cpu", "--model-config", "qwen3_0.6b"});
  EXPECT_EQ(other.value("num-layers"), "");
  EXPECT_EQ(other.value("vocab-size"), "");
}

TEST(Recipe, ErrorsNameItsLines) {
  const std::string error =
      recipe_error({"--recipe", "gemma2_9b_8xh100", "--tensor-model-parallel-size", "3"});
  expect_contains(error, {"8 ranks", "--ranks is set in recipe gemma2_9b_8xh100:"});
  const std::string shape = recipe_error({"--recipe", "gemma2_9b_8xh100", "--num-layers", "2"});
  expect_contains(shape, {"--num-layers and --model-config gemma2_9b both give",
                          "--model-config is set in recipe gemma2_9b_8xh100:"});
}

TEST(Recipe, UnknownNamesAreAnsweredWithTheNearestAndAll) {
  const std::string error = recipe_error({"--recipe", "gemma2_9b_8xh10"});
  expect_contains(
      error, {"'gemma2_9b_8xh10'", "did you mean gemma2_9b_8xh100?", "pythia_1.4b", "twins/NAME"});
  expect_contains(recipe_error({"--recipe", "twins/gemma2_9b_8xh10"}),
                  {"did you mean twins/gemma2_9b_8xh100?"});
  expect_contains(recipe_error({"--recipe", "llama2_7b"}), {"did you mean llama2_7b_8xa100?"});
  EXPECT_FALSE(testing::has(recipe_error({"--recipe", "x"}), "did you mean"));
}

TEST(Recipe, IsOfCommandsThatTrainAndOfNoFile) {
  expect_contains(recipe_error({"--recipe", "gpt2_124m_2cpu", "--preset", "llama-1b"}),
                  {"--recipe gpt2_124m_2cpu and --preset llama-1b", "drop one"});
  const fs::path file = fs::temp_directory_path() / ("recipe_" + std::to_string(::getpid()));
  std::ofstream(file) << "recipe: gpt2_124m_2cpu\n";
  expect_contains(recipe_error({"--config", file}), {":1: 'recipe' cannot be set in a file"});
  fs::remove(file);
  double lr = 0;
  Fields fields;
  fields.add("lr", &lr, "learning rate");
  Words notes;
  EXPECT_THROW(parse_training("x", "", fields, {"--recipe", "gpt2_124m_2cpu"}, notes), Error);
}

// The printed configuration is the recipe's run without the recipe's name.
TEST(Recipe, IsPrintedAsAFile) {
  const std::string text =
      printed({"--recipe", "twins/nemotron4_340b_6144xh100", "--print-config"});
  expect_contains(text, {"model-config: twins/nemotron4_340b\n", "ranks: 8\n"});
  const fs::path file = fs::temp_directory_path() / ("recipe_" + std::to_string(::getpid()));
  std::ofstream(file) << text;
  std::string again = printed({"--config", file, "--print-config"}), first = text;
  for (std::string* one : {&first, &again}) {  // values from the file are not defaults
    constexpr std::string_view kMark = "  # default";
    for (size_t at; (at = one->find(kMark)) != one->npos;) one->erase(at, kMark.size());
  }
  EXPECT_EQ(again, first);
  fs::remove(file);
}

// The program contains the files unchanged.
TEST(Recipe, NamesAreThoseOfTheFolder) {
  const fs::path folder = fs::path(MEGATRON_TEST_SOURCES) / "../recipes";
  const std::vector<std::string> recipes = settings::recipe_names(),
                                 models = settings::model_config_names();
  EXPECT_EQ(recipes.size(), 59u);
  EXPECT_EQ(models.size(), 47u);
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    ++files;
    const fs::path path = fs::relative(entry.path(), folder);
    const std::string name = (path.parent_path() / path.stem()).string();
    const std::string content = read_file(entry.path());
    if (path.extension() == ".yaml") {
      EXPECT_EQ(settings::recipe_text(name), content);
    } else {
      EXPECT_EQ(settings::model_config_text(name.substr(7)), content) << name;
    }
  }
  EXPECT_EQ(files, 2 * (recipes.size() + models.size()));
}

}  // namespace
}  // namespace megatron::cli
