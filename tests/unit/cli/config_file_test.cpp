// Flags from a file, and back into one.
#include "cli/config_file.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "cli/options.h"
#include "training/settings.h"

namespace megatron::cli {
namespace {

using Words = std::vector<std::string>;

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

class ConfigFile : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("megatron_config_") + test->name() + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& text, const std::string& name = "run.yaml") {
    const std::string path = folder_ / name;
    std::ofstream(path) << text;
    return path;
  }

  struct Train {
    training::TrainSettings settings;
    Fields fields = settings.fields();
    Words notes;
    std::optional<int> read(const Words& arguments) {
      return parse_training("megatron train [flags]", "", fields, arguments, notes);
    }
    std::string value(const std::string& name) { return fields.find(name)->get(); }
  };

  // The error of a file's text, without the folder's name.
  std::string error(const std::string& text, Words more = {}) {
    more.insert(more.begin(), {"--config", file(text)});
    try {
      Train().read(more);
    } catch (const Error& e) {
      std::string what = e.what();
      const std::string folder = folder_.string() + "/";
      for (size_t at; (at = what.find(folder)) != what.npos;) what.erase(at, folder.size());
      return what;
    }
    return "";
  }

  static std::string print(Train& train, Words arguments) {
    arguments.push_back("--print-config");
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(train.read(arguments), 0);
    std::fflush(stdout);
    return ::testing::internal::GetCapturedStdout();
  }

  std::filesystem::path folder_;
};

TEST_F(ConfigFile, SetsFlags) {
  Train train;
  train.read({"--config", file("num-layers: 12\n"
                               "hidden_size: 768   # _ counts as -\n"
                               "optimizer:\n"
                               "  lr: 1e-3\n"
                               "  nested: {min_lr: 1e-4, optimizer: sgd}\n"
                               "bf16: True\n"
                               "swiglu: false\n"
                               "data-path: [0.7, a, b c]\n"
                               "tokenizer-special-tokens:\n  - '[PAD]'\n  - \"x\\ny\"\n"
                               "save: \"\"\n")});
  EXPECT_EQ(train.value("num-layers"), "12");
  EXPECT_EQ(train.value("hidden-size"), "768");
  EXPECT_EQ(train.value("lr"), "0.001");
  EXPECT_EQ(train.value("min-lr"), "0.0001");
  EXPECT_EQ(train.value("optimizer"), "sgd");
  EXPECT_TRUE(train.settings.precision.bf16);
  EXPECT_FALSE(train.settings.shape.swiglu);
  EXPECT_EQ(train.settings.data.data_path, (Words{"0.7", "a", "b c"}));
  EXPECT_EQ(train.settings.data.tokenizer_special_tokens, (Words{"[PAD]", "x\ny"}));
  EXPECT_EQ(train.settings.checkpoint.save, "");
  EXPECT_TRUE(train.fields.find("num-layers")->given);
  EXPECT_EQ(Train().read({"--config", file("# nothing\n")}), std::nullopt);
}

TEST_F(ConfigFile, TheLastOfSeveralCountsAndFlagsWin) {
  const std::string a = file("num-layers: 1\nlr: 1\ndata-path: [a, b]\nbf16: true\nseed: 5\n", "a");
  const std::string b = file("num-layers: 2\nlr: 2\n", "b");
  Train train;
  train.read({"--num-layers", "3", "--config", a, "--data-path", "c", "--config=" + b,
              "--bf16=false", "--num-workers=1"});
  EXPECT_EQ(train.value("num-layers"), "3");
  EXPECT_EQ(train.value("lr"), "2");
  EXPECT_EQ(train.value("seed"), "5");
  EXPECT_EQ(train.settings.data.data_path, Words{"c"});
  EXPECT_FALSE(train.settings.precision.bf16);
}

TEST_F(ConfigFile, TakesTheEnvironment) {
  ::setenv("MEGATRON_TEST_PLACE", "/a b", 1);
  ::unsetenv("MEGATRON_TEST_NOTHING");
  Train train;
  train.read({"--config", file("save: ${MEGATRON_TEST_PLACE}/x\nload: $${HOME}$\n"
                               "data-path: ['${MEGATRON_TEST_PLACE}']\n")});
  EXPECT_EQ(train.value("save"), "/a b/x");
  EXPECT_EQ(train.value("load"), "${HOME}$");
  EXPECT_EQ(train.settings.data.data_path, Words{"/a b"});
  EXPECT_TRUE(has(error("lr: 1\nsave: ${MEGATRON_TEST_NOTHING}\n"),
                  "run.yaml:2: the environment has no variable MEGATRON_TEST_NOTHING"));
  EXPECT_TRUE(has(error("save: ${HOME\n"), "run.yaml:1: "));
}

TEST_F(ConfigFile, MegatronsOtherFlagsAreTreatedAsOnACommandLine) {
  Train train;
  train.read({"--config", file("use_flash_attn: true\nbatch-size: 4\nnum-workers: 3\n"
                               "tensor-model-parallel-size: 1\n")});
  EXPECT_EQ(train.value("micro-batch-size"), "4");
  ASSERT_EQ(train.notes.size(), 2u);
  EXPECT_TRUE(has(train.notes[1], "--use-flash-attn"));
  EXPECT_TRUE(has(error("num-layers: 1\nnum-experts: 8\n"), "--num-experts 8 is refused: it "));
  EXPECT_TRUE(has(error("num-workers: x\n"), "run.yaml:1: --num-workers is 'x'"));
  EXPECT_EQ(error("tensor-model-parallel-size: 8\n", {"--tensor-model-parallel-size", "1"}), "");
}

TEST_F(ConfigFile, ErrorsNameFileAndLine) {
  EXPECT_TRUE(has(error("\nnum-layer: 1\n"), "run.yaml:2: there is no flag --num-layer; did you"));
  EXPECT_TRUE(has(error("lr: 1\n\nnum-layers: twelve\n"), "run.yaml:3: --num-layers is 'twelve'"));
  EXPECT_TRUE(has(error("lr: 1\ng:\n  lr: 2\n"), "run.yaml:3: 'lr' stands in run.yaml:1 already"));
  EXPECT_TRUE(has(error("min-lr: 1\nmin_lr: 2\n"), "run.yaml:2: 'min_lr' stands in"));
  EXPECT_TRUE(has(error("lr: 1\nlr: 1\n"), "run.yaml:2: 'lr' stands in"));
  EXPECT_TRUE(has(error("lr: [1, 2]\n"), "run.yaml:1: 'lr' takes one value, and a list is given"));
  EXPECT_TRUE(has(error("data-path: []\n"), "run.yaml:1: 'data-path' is an empty list"));
  EXPECT_TRUE(has(error("data-path: [[a]]\n"), "run.yaml:1: the list of 'data-path'"));
  EXPECT_TRUE(has(error("bf16: 1\n"), "run.yaml:1: --bf16"));
  EXPECT_TRUE(has(error("lr:\n"), "run.yaml:1: 'lr' has no value"));
  EXPECT_TRUE(has(error("[a]: 1\n"), "run.yaml:1: a key must be"));
  EXPECT_TRUE(has(error("- lr\n"), "run.yaml: a configuration file holds lines like"));
  EXPECT_TRUE(has(error("lr: 1\n---\nlr: 2\n"), "more than one YAML document"));
  EXPECT_TRUE(has(error(", lr: 1\nbf1[: true\nd!t: 0.7, a]\n"), "run.yaml"));
  EXPECT_TRUE(has(error("lr: {\n"), "this is no YAML"));
  EXPECT_TRUE(has(error("lr: 1\n bad: 2\n"), "run.yaml:2: this is no YAML"));
  EXPECT_TRUE(has(error("config: x\n"), "there is no flag --config"));
  EXPECT_TRUE(has(error("a: &a {b: *a}\n"), "run.yaml"));
  EXPECT_THROW(Train().read({"--config", "/nonexistent.yaml"}), Error);
  EXPECT_THROW(Train().read({"--config"}), Error);
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "{a: ";
  EXPECT_NE(error(deep), "");
  EXPECT_NE(error("x: " + std::string(2 << 20, 'x')), "");
  std::string bomb = "a0: &a0 {x: {}}\n";
  for (int i = 1; i < 14; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " {a: " + before +
            ", b: " + before + ", c: " + before + ", d: " + before + "}\n";
  }
  EXPECT_NE(error(bomb), "");
}

TEST_F(ConfigFile, WhatIsPrintedReadsBack) {
  Train first;
  const std::string text = print(first, {"--num-layers",
                                         "4",
                                         "--lr",
                                         "0.1",
                                         "--data-path",
                                         "0.3",
                                         "a b",
                                         "-5",
                                         "--save=",
                                         "--load",
                                         "a: \"b\" # ${HOME} \\ \x01\t\xc3\xa9",
                                         "--swiglu",
                                         "--bf16",
                                         "--seed=7",
                                         "--no-calculate-per-token-loss",
                                         "--model",
                                         "null",
                                         "--vocab-file",
                                         "~",
                                         "--tokenizer-special-tokens",
                                         "[PAD]",
                                         "- x",
                                         "true"});
  EXPECT_TRUE(has(text, "\nnum-layers: 4\n"));
  EXPECT_TRUE(has(text, "\nmin-lr: 0  # default\n"));
  EXPECT_TRUE(has(text, "\n# hidden-size: not set\n"));
  Train second;
  second.read({"--config", file(text)});
  EXPECT_TRUE(changed(first.fields, second.fields).empty());
  for (size_t i = 0; i < first.fields.all().size(); ++i) {
    const Field& a = first.fields.all()[i];
    const Field& b = second.fields.all()[i];
    EXPECT_EQ(a.get(), b.get()) << a.name;
    if (a.many) {
      EXPECT_EQ(a.get_all(), b.get_all()) << a.name;
    }
  }
  EXPECT_EQ(second.settings.checkpoint.save, "");
  Train third;
  std::string again = print(third, {"--config", folder_ / "run.yaml"});
  std::string marked = text;
  for (std::string* t : {&again, &marked})
    for (size_t at; (at = t->find("  # default")) != t->npos;) t->erase(at, 11);
  EXPECT_EQ(again, marked);
}

TEST_F(ConfigFile, ReadingIsFast) {
  Train train;
  const std::string path = file(print(train, {"--num-layers", "4"}));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i)
    Train().read({"--config", path, "--use-flash-attn", "--num-workers", "3"});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count() / 20, 0.05);
}

}  // namespace
}  // namespace megatron::cli
