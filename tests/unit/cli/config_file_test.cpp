// Reads flags from a file, and prints them to one.
#include "cli/config_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "cli/options.h"
#include "settings/settings.h"
#include "text.h"

namespace megatron::cli {
namespace {

using testing::has;

using Words = std::vector<std::string>;

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
    settings::TrainSettings settings;
    Fields fields = settings.fields();
    Words notes;
    PrintConfig print_config;
    std::optional<int> read(const Words& arguments) {
      return parse_training("megatron train [flags]", "", fields, arguments, notes, print_config);
    }
    std::string value(const std::string& name) { return fields.find(name)->get(); }
  };

  std::string without_folder(std::string text) const {
    const std::string folder = folder_.string() + "/";
    for (size_t at; (at = text.find(folder)) != text.npos;) text.erase(at, folder.size());
    return text;
  }

  // Error for a file's text, without the folder's name.
  std::string error(const std::string& text, Words more = {}) {
    more.insert(more.begin(), {"--config", file(text)});
    try {
      Train().read(more);
    } catch (const Error& e) {
      return without_folder(e.what());
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
                               "schedule:\n"
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

// Flags that exclude those of the file replace them, instead of causing an error.
TEST_F(ConfigFile, FlagsWinOverThoseThatTheyExclude) {
  const std::string path = file(
      "train-samples: 100\nlr-decay-samples: 50\nfp16: true\nloss-scale: 8\nmock-data: true\n"
      "step-batch-size-schedule: 0:4\nlr-warmup-samples: 10\ngroup:\n  swiglu: true\n"
      "num-layers: 3\n");
  Train train;
  train.read({"--train-iters", "20", "--bf16", "--data-path", "a", "--global-batch-size", "8",
              "--lr-warmup-fraction", "0.1", "--model", "m", "--config", path});
  for (const std::string flag : {"train-samples", "lr-decay-samples", "loss-scale",
                                 "step-batch-size-schedule", "num-layers"})
    EXPECT_EQ(train.value(flag), "") << flag;
  for (const std::string flag : {"fp16", "mock-data", "swiglu"})
    EXPECT_EQ(train.value(flag), "false") << flag;
  EXPECT_EQ(train.value("lr-warmup-samples"), "0");
  EXPECT_FALSE(train.fields.find("train-samples")->given);
  EXPECT_EQ(train.value("train-iters"), "20");
  ASSERT_EQ(train.notes.size(), 9u);
  const auto says = [&](const std::string& line) {
    return std::ranges::any_of(
        train.notes, [&](const std::string& note) { return without_folder(note) == line; });
  };
  EXPECT_TRUE(says("run.yaml:1: train-samples 100 is overridden by --train-iters"));
  EXPECT_TRUE(says("run.yaml:3: fp16 is overridden by --bf16"));
  EXPECT_TRUE(says("run.yaml:9: swiglu is overridden by --model"));
  Train off;  // gives no flags
  off.read({"--config", path, "--bf16=false"});
  EXPECT_EQ(off.value("fp16"), "true");
  EXPECT_TRUE(off.notes.empty());
  const std::string above = file("train-iters: 3\nlr: 1\n", "above.yaml");
  Train files;
  files.read({"--config", path, above});
  EXPECT_EQ(files.value("train-samples"), "");
  EXPECT_EQ(files.value("train-iters"), "3");
  Train both;  // in the same file: left to the later checks
  both.read({"--config", file("train-iters: 3\ntrain-samples: 100\n")});
  EXPECT_EQ(both.value("train-samples"), "100");
  EXPECT_EQ(both.value("train-iters"), "3");
}

// A file, a command line, the fields that keep the file's value, and the fields that do not.
TEST_F(ConfigFile, WhatGoesTogetherStays) {
  struct Case {
    std::string text;
    Words flags, keep, lose;
  };
  for (const Case& c : {
           Case{"fp16: true\ninitial-loss-scale: 65536\nhysteresis: 4\n",
                {"--loss-scale", "0"},
                {"initial-loss-scale", "hysteresis"},
                {}},
           Case{"fp16: true\nloss-scale: 1024\n", {"--hysteresis", "2"}, {"loss-scale"}, {}},
           Case{"fp16: true\nloss-scale: 1024\n", {"--hysteresis", "3"}, {}, {"loss-scale"}},
           Case{"no-check-for-nan-in-loss-and-grad: true\n",
                {"--on-non-finite", "stop"},
                {"no-check-for-nan-in-loss-and-grad"},
                {}},
           Case{"no-check-for-nan-in-loss-and-grad: true\n",
                {"--on-non-finite", "skip"},
                {},
                {"no-check-for-nan-in-loss-and-grad"}},
           Case{"recompute-granularity: full\nrecompute-method: uniform\nrecompute-num-layers: 3\n",
                {"--recompute-granularity", "full"},
                {"recompute-method", "recompute-num-layers"},
                {}},
           Case{"recompute-granularity: full\nrecompute-method: uniform\nrecompute-num-layers: 3\n",
                {"--recompute-granularity", "selective"},
                {},
                {"recompute-method", "recompute-num-layers"}},
           Case{"model: some/llama\n", {"--num-layers", "2"}, {}, {"model"}},
           Case{"model: some/llama\n", {"--norm-epsilon", "1e-5"}, {"model"}, {}},
           Case{"distributed-timeout-seconds-after-init: 60\n",
                {"--distributed-timeout-minutes", "5"},
                {},
                {"distributed-timeout-seconds-after-init"}},
           Case{"start-weight-decay: 0.1\nend-weight-decay: 0.2\n",
                {"--weight-decay", "0.3"},
                {},
                {"start-weight-decay", "end-weight-decay"}},
           Case{"padded-vocab-size: 128\n",
                {"--make-vocab-size-divisible-by", "64"},
                {},
                {"padded-vocab-size"}},
           Case{"vocab-file: a\nmerge-file: b\n",
                {"--tokenizer-type", "GPT2BPETokenizer"},
                {"vocab-file", "merge-file"},
                {}},
           Case{"vocab-file: a\nmerge-file: b\n",
                {"--tokenizer-type", "NullTokenizer"},
                {},
                {"vocab-file", "merge-file"}},
           Case{"data-parallel-sharding-strategy: optim\n",
                {"--use-torch-fsdp2"},
                {},
                {"data-parallel-sharding-strategy"}},
       }) {
    SCOPED_TRACE(c.text + c.flags[0]);
    Train train;
    Words words = {"--config", file(c.text)};
    words.insert(words.end(), c.flags.begin(), c.flags.end());
    train.read(words);
    for (const std::string& name : c.keep) EXPECT_TRUE(train.fields.find(name)->given) << name;
    for (const std::string& name : c.lose) EXPECT_FALSE(train.fields.find(name)->given) << name;
    EXPECT_EQ(train.notes.size(), c.lose.size());
  }
}

TEST_F(ConfigFile, LaterErrorsNameTheLines) {
  Train train;
  train.read({"--config", file("seq-length: 8\n\ntrain-iters: 3\ntrain-samples: 100\n"),
              "--seq-length", "16"});
  const auto thrown = [&](const std::string& text) {
    try {
      naming_places(train.fields, [&]() -> int { throw Error(text); });
    } catch (const Error& e) {
      return without_folder(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(thrown("--train-iters 3 and --train-samples are both given; give one"),
            "--train-iters 3 and --train-samples are both given; give one (--train-iters is set in "
            "run.yaml:3, --train-samples is set in run.yaml:4)");
  EXPECT_EQ(thrown("--seq-length is 16"), "--seq-length is 16");
  EXPECT_EQ(thrown("--train-iters-of-another is 3"), "--train-iters-of-another is 3");
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
                  "run.yaml:2: the environment variable MEGATRON_TEST_NOTHING is not set"));
  EXPECT_TRUE(has(error("save: ${HOME\n"), "run.yaml:1: "));
}

TEST_F(ConfigFile, MegatronsOtherFlagsAreTreatedAsOnACommandLine) {
  Train train;
  train.read({"--config", file("use_flash_attn: true\nbatch-size: 4\nnum-workers: 3\n"
                               "tensor-model-parallel-size: 1\n")});
  EXPECT_EQ(train.value("micro-batch-size"), "4");
  ASSERT_EQ(train.notes.size(), 2u);
  EXPECT_TRUE(has(train.notes[1], "--use-flash-attn"));
  EXPECT_TRUE(has(error("num-layers: 1\nmoe-mlp-glu-interleave-size: 8\n"),
                  "run.yaml:2: --moe-mlp-glu-interleave-size 8 is refused: it "));
  const std::string two = error("moe-mlp-glu-interleave-size: 8\n", {"--hybrid-context-parallel"});
  EXPECT_TRUE(has(two, "\n  run.yaml:1: --moe-mlp-glu-interleave-size 8 is refused: it ")) << two;
  EXPECT_TRUE(has(two, "\n  --hybrid-context-parallel is refused: it ")) << two;
  EXPECT_TRUE(has(error("batch-size: 4\n", {"--lr", "x"}), "--lr is 'x'"));
  EXPECT_TRUE(has(error("num-workers: x\n"), "run.yaml:1: --num-workers is 'x'"));
  EXPECT_EQ(error("tensor-model-parallel-size: 8\n", {"--tensor-model-parallel-size", "1"}), "");
}

TEST_F(ConfigFile, ErrorsNameFileAndLine) {
  EXPECT_TRUE(has(error("\nnum-layer: 1\n"), "run.yaml:2: there is no flag --num-layer; did you"));
  EXPECT_TRUE(has(error("lr: 1\n\nnum-layers: twelve\n"), "run.yaml:3: --num-layers is 'twelve'"));
  EXPECT_TRUE(has(error("lr: 1\ng:\n  lr: 2\n"), "run.yaml:3: 'lr' is already set in run.yaml:1"));
  EXPECT_TRUE(has(error("min-lr: 1\nmin_lr: 2\n"), "run.yaml:2: 'min_lr' is already set in"));
  EXPECT_TRUE(has(error("lr: 1\nlr: 1\n"), "run.yaml:2: 'lr' is already set in"));
  EXPECT_TRUE(has(error("lr: [1, 2]\n"), "run.yaml:1: 'lr' takes one value, but a list is given"));
  EXPECT_TRUE(has(error("data-path: []\n"), "run.yaml:1: 'data-path' is an empty list"));
  EXPECT_TRUE(has(error("data-path: [[a]]\n"), "run.yaml:1: the list of 'data-path'"));
  EXPECT_TRUE(has(error("bf16: 1\n"), "run.yaml:1: --bf16"));
  EXPECT_TRUE(has(error("lr:\n"), "run.yaml:1: 'lr' has no value"));
  EXPECT_TRUE(has(error("[a]: 1\n"), "run.yaml:1: a key must be"));
  EXPECT_TRUE(has(error("- lr\n"), "run.yaml: a configuration file contains lines such as"));
  EXPECT_TRUE(has(error("lr: 1\n---\nlr: 2\n"), "more than one YAML document"));
  EXPECT_TRUE(has(error(", lr: 1\nbf1[: true\nd!t: 0.7, a]\n"), "run.yaml"));
  EXPECT_TRUE(has(error("lr: {\n"), "not valid YAML"));
  EXPECT_TRUE(has(error("lr: 1\n bad: 2\n"), "run.yaml:2: not valid YAML"));
  EXPECT_TRUE(has(error("config: x\n"), "run.yaml:1: 'config' cannot be set in a file"));
  EXPECT_TRUE(has(error("print_config: true\n"), "run.yaml:1: 'print_config' cannot be set in a "));
  EXPECT_TRUE(has(error("help: true\n"), "run.yaml:1: 'help' cannot be set in a file"));
  for (const std::string group : {"num-layers", "num_layers", "num-experts", "optimizer", "bf16"})
    EXPECT_TRUE(has(error(group + ": {hidden-size: 3}\n"),
                    "run.yaml:1: '" + group + "' is a flag and cannot name a group"))
        << group;
  EXPECT_TRUE(has(error("data-path: {}\n"), "run.yaml:1: 'data-path' is a flag"));
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

TEST_F(ConfigFile, WhatIsNoTextIsRefused) {
  EXPECT_TRUE(has(error("\xff\xfe"), "run.yaml is not valid UTF-8"));
  EXPECT_TRUE(has(error("lr: 1\nsave: \xe9\n"), "run.yaml is not valid UTF-8"));
  EXPECT_TRUE(has(error(std::string(2, '\0')), "run.yaml:1: a zero byte"));
  EXPECT_TRUE(has(error(std::string("lr: 1\n\0", 7)), "run.yaml:2: a zero byte"));
  for (const std::string quote : {"'", "\""}) {
    for (const std::string end : {"", "\n", " \n", "\n\n", "\r\n", "\n# a\n"})
      EXPECT_EQ(error("save: " + quote + "unterminated" + end),
                "run.yaml ends inside a quoted string; close the quote")
          << quote << end;
  }
  EXPECT_EQ(error("save: 'a'\n"), "");
  Train literal;
  literal.read({"--config", file("save: |+\n  a\n\n"), "--lr", "1"});
  EXPECT_EQ(literal.value("save"), "a\n\n");
  EXPECT_EQ(Train().read({"--config", "/dev/null"}), std::nullopt);
  try {
    Train().read({"--config", "/dev/zero"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_TRUE(has(e.what(), "'/dev/zero' is larger than 1048576 bytes")) << e.what();
  }
}

// Some fields belong to the command itself. The others are checked after printing.
TEST_F(ConfigFile, PrintsAsMuchAsAnotherCommandReads) {
  Train train;
  train.print_config.fields = train.fields.all().size();
  bool own = false;
  train.fields.add_switch("of-this-command", &own, true, "");
  const std::string text = print(train, {"--num-layers", "4", "--of-this-command"});
  EXPECT_FALSE(has(text, "of-this-command"));
  EXPECT_TRUE(has(text, "profile")) << "the last of the others";
  Train other;
  EXPECT_EQ(other.read({"--config", file(text)}), std::nullopt);
  Train wrong;
  wrong.print_config.check = [] { fail("--num-layers is 0"); };
  ::testing::internal::CaptureStdout();
  try {
    wrong.read({"--config", file("num-layers: 0\n"), "--print-config"});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(without_folder(e.what()), "--num-layers is 0 (--num-layers is set in run.yaml:1)");
  }
  EXPECT_TRUE(has(::testing::internal::GetCapturedStdout(), "\nnum-layers: 0\n"));
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

}  // namespace
}  // namespace megatron::cli
