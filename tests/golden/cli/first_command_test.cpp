// `megatron train` for a user who knows no flag: it says what is missing and shows a command that
// runs, a help text and the names of models.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/files.h"
#include "data/indexed_dataset.h"
#include "golden/cli/process.h"
#include "settings/presets.h"
#include "text.h"

namespace megatron::cli {
namespace {

using testing::has;

using testing::Outcome;
using testing::Workplace;
using Words = std::vector<std::string>;

// Returns the command that a message shows, without the program's name.
Words shown_command(const std::string& text) {
  constexpr std::string_view kHead = "A complete command that runs here:\n";
  const size_t at = text.find(kHead);
  EXPECT_NE(at, text.npos) << text;
  if (at == text.npos) return {};
  std::string command = text.substr(at + kHead.size());
  for (size_t cut; (cut = command.find("\\\n")) != command.npos;) command.replace(cut, 2, " ");
  std::istringstream words(command.substr(0, command.find('\n')));
  Words all;
  for (std::string word; words >> word;) all.push_back(word);
  EXPECT_EQ(all.at(0), MEGATRON_BINARY);
  all.erase(all.begin());
  return all;
}

size_t count(const Words& words, const std::string& word) {
  return static_cast<size_t>(std::ranges::count(words, word));
}

TEST(FirstCommand, AllThatLacksIsNamedAtOnceWithACommandThatRuns) {
  const Workplace place;
  const Outcome r = place.run({"train"});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "megatron train needs 9 more flags:\n")) << r.err;
  for (const char* flag : {"--num-layers INT, --hidden-size INT, --num-attention-heads INT:",
                           "--vocab-size INT:", "--seq-length INT:", "--micro-batch-size INT:",
                           "--train-iters INT:", "--lr FLOAT:", "--data-path PREFIX:"})
    EXPECT_TRUE(has(r.err, flag)) << flag << r.err;
  std::istringstream lines(r.err);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 500u);
  const Words command = shown_command(r.err);
  EXPECT_EQ(count(command, "--mock-data"), 1u);
  const Outcome run = place.run(command);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "20/20")) << run.out;
}

TEST(FirstCommand, WhatIsGivenStays) {
  const Workplace place;
  const Outcome r = place.run({"train", "--hidden-size", "6", "--lr=1e-2", "--seq-length", "8",
                               "--num-layers", "1", "--log-jsonl", "a log", "--mock-data"});
  EXPECT_TRUE(has(r.err, "needs 4 more flags")) << r.err;
  EXPECT_FALSE(has(r.err, "--lr FLOAT")) << r.err;
  EXPECT_TRUE(has(r.err, "--log-jsonl 'a log'")) << r.err;
  const Outcome one = place.run({"train", "--preset", "gpt2-124m", "--lr", "1", "--mock-data"});
  EXPECT_TRUE(has(one.err, "needs 1 more flag:\n  --train-iters INT: ")) << one.err;
  EXPECT_EQ(shown_command(one.err), (Words{"train", "--preset", "gpt2-124m", "--lr", "1",
                                           "--mock-data", "--train-iters", "20"}));
  // No completion of the given command would run, so one from another run is shown.
  const Outcome refused = place.run({"train", "--num-layers", "0"});
  EXPECT_TRUE(has(refused.err, "A complete command from another run:\n")) << refused.err;
}

TEST(FirstCommand, ADataSetOfTheFolderIsTaken) {
  const Workplace place;
  data::IndexedDatasetBuilder builder(place / "mine", DType::u16);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 100; ++i) tokens.push_back(i % 77);
  for (int d = 0; d < 200; ++d) {
    builder.add_item(std::span<const int32_t>(tokens));
    builder.end_document();
  }
  builder.finalize();
  write_file(place / "broken.idx", "no index");
  write_file(place / "broken.bin", "no tokens");
  Words command = shown_command(place.run({"train", "--num-layers", "1"}).err);
  EXPECT_TRUE(std::ranges::search(command, Words{"--data-path", "mine"})) << "the data set";
  EXPECT_TRUE(std::ranges::search(command, Words{"--vocab-size", "77"})) << "its largest id";
  const Outcome run = place.run(command);
  EXPECT_EQ(run.code, 0) << run.err;
}

TEST(FirstCommand, PlansNeedLess) {
  const Workplace place;
  const Outcome r = place.run({"plan", "--no-time"});
  EXPECT_TRUE(has(r.err, "megatron plan needs 6 more flags:\n")) << r.err;
  EXPECT_FALSE(has(r.err, "--lr FLOAT")) << r.err;
  const Outcome run = place.run(shown_command(r.err));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "parameters")) << run.out;
}

TEST(FirstCommand, HelpOfACommand) {
  const Workplace place;
  EXPECT_EQ(place.run({"help", "train"}).out, place.run({"train", "--help"}).out);
  EXPECT_EQ(place.run({"help"}).out, place.run({"--help"}).out);
  EXPECT_EQ(place.run({"help", "train", "memory"}).out,
            place.run({"train", "--help", "memory"}).out);
  EXPECT_EQ(place.run({"help", "bench", "step"}).out, place.run({"bench", "step", "--help"}).out);
  const Outcome unknown = place.run({"help", "trian"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_TRUE(has(unknown.err, "did you mean 'train'")) << unknown.err;
  for (const Words& command : {Words{"generate"},
                               {"eval"},
                               {"plan"},
                               {"preprocess"},
                               {"bench", "step"},
                               {"bench", "generate"}}) {
    Words words = command;
    words.insert(words.end(), {"--help", "all"});
    const Outcome all = place.run(words);
    words.pop_back();
    const Outcome brief = place.run(words);
    EXPECT_EQ(all.code, 0) << command[0] << all.err;
    EXPECT_EQ(brief.code, 0) << command[0] << brief.err;
    EXPECT_LT(brief.out.size(), all.out.size()) << command[0];
    EXPECT_TRUE(has(brief.out, "--help all")) << command[0];
  }
}

// Returns the lines of --print-config without comments and marks of defaults.
std::set<std::string> configuration(const Workplace& place, const Words& words) {
  std::istringstream lines(place.run(words).out);
  std::set<std::string> all;
  for (std::string line; std::getline(lines, line);)
    if (!line.starts_with("#")) all.insert(line.substr(0, line.find("  # default")));
  return all;
}

TEST(Preset, IsTheSameInTrainPlanAndBench) {
  const Workplace place;
  for (const std::string& preset : settings::preset_names()) {
    SCOPED_TRACE(preset);
    const Words given = {"--preset", preset, "--print-config"};
    const auto of = [&](Words command) {
      command.insert(command.end(), given.begin(), given.end());
      return configuration(place, command);
    };
    const std::set<std::string> train = of({"train"}), plan = of({"plan"});
    EXPECT_EQ(train, plan);
    const std::set<std::string> bench = of({"bench", "step"});
    for (const std::string& line : train) {
      const bool of_bench =
          line.starts_with("lr-decay-style:") || line.starts_with("log-interval:");
      EXPECT_TRUE(of_bench || bench.contains(line)) << line;
    }
    EXPECT_TRUE(train.contains("preset: " + preset));
    EXPECT_TRUE(train.contains("hidden-dropout: 0"));
  }
}

TEST(Preset, GivesWayToOtherFlagsAndIsLogged) {
  const Workplace place;
  write_file(place / "run.yaml", "preset: llama-160m\nnum-layers: 2\n");
  const Words tiny = {"--hidden-size",
                      "48",
                      "--ffn-hidden-size",
                      "64",
                      "--seq-length",
                      "8",
                      "--vocab-size",
                      "64",
                      "--train-iters",
                      "1",
                      "--mock-data",
                      "--lr",
                      "1e-3",
                      "--log-jsonl",
                      "log"};
  for (const Words& preset :
       {Words{"--preset", "llama-160m", "--num-layers", "2"}, Words{"--config", "run.yaml"}}) {
    Words words = {"train"};
    words.insert(words.end(), tiny.begin(), tiny.end());
    words.insert(words.end(), preset.begin(), preset.end());
    const Outcome r = place.run(words);
    EXPECT_EQ(r.code, 0) << r.err;
    const size_t note = r.err.find("--preset llama-160m sets --num-attention-heads 12 ");
    ASSERT_NE(note, r.err.npos) << r.err;
    const std::string line = r.err.substr(note, r.err.find('\n', note) - note);
    EXPECT_TRUE(has(line, " --swiglu ")) << line;
    EXPECT_TRUE(has(line,
                    "; overridden by other flags: --num-layers --hidden-size --vocab-size "
                    "--ffn-hidden-size --seq-length"))
        << line;
    const std::string log = read_file(place / "log");
    EXPECT_TRUE(has(log, R"("preset": "llama-160m")")) << log;
    EXPECT_TRUE(has(log, R"("num-layers": "2")")) << log;
  }
  const Outcome unknown = place.run({"train", "--preset", "gpt3"});
  EXPECT_EQ(unknown.code, 2);
  for (const std::string& name : settings::preset_names()) EXPECT_TRUE(has(unknown.err, name));
}

// A model directory or a tokenizer takes precedence over the preset.
TEST(Preset, LeavesShapeToAModelAndVocabularyToATokenizer) {
  const Workplace place;
  const auto with = [&](const Words& more) {
    Words words = {"plan", "--preset", "gpt2-124m", "--print-config"};
    words.insert(words.end(), more.begin(), more.end());
    return configuration(place, words);
  };
  const auto model = with({"--model", "dir"});
  for (const std::string& line : model) {
    EXPECT_FALSE(line.starts_with("num-layers:") || line.starts_with("vocab-size:")) << line;
  }
  EXPECT_TRUE(model.contains("seq-length: 1024"));
  for (const std::string& line : with({"--tokenizer-model", "dir"}))
    EXPECT_FALSE(line.starts_with("vocab-size:")) << line;
  EXPECT_TRUE(with({"--tokenizer-model", "dir", "--vocab-size", "99"}).contains("vocab-size: 99"));
}

}  // namespace
}  // namespace megatron::cli
