// The help of commands with many flags: common flags, single groups, all flags, and search by
// words.
#include "cli/help.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "cli/options.h"
#include "corpus/preprocess.h"
#include "settings/settings.h"
#include "training/evaluation.h"

namespace megatron::cli {
namespace {

using Words = std::vector<std::string>;

struct Printed {
  std::optional<int> code;
  std::string text;
};

// Output of `megatron train --help`.
Printed help_of_train(const Words& arguments) {
  settings::TrainSettings settings;
  Fields fields = settings.fields();
  Words notes;
  ::testing::internal::CaptureStdout();
  Printed printed;
  try {
    printed.code = parse_training("megatron train [flags]", "Trains.", fields, arguments, notes);
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  std::fflush(stdout);
  printed.text = ::testing::internal::GetCapturedStdout();
  return printed;
}

Words lines_of(const std::string& text) {
  Words lines;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != text.npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  return lines;
}

// Returns "lr" for "  --lr FLOAT   ...", and "" for other lines.
std::string flag_of(const std::string& line) {
  if (!line.starts_with("  --")) return "";
  return line.substr(4, line.find(' ', 4) - 4);
}

// Flags by heading.
std::map<std::string, std::multiset<std::string>> groups_of(const std::string& text) {
  std::map<std::string, std::multiset<std::string>> groups;
  std::string group;
  for (const std::string& line : lines_of(text)) {
    if (!line.empty() && line[0] != ' ' && line.find(": ") != line.npos)
      group = line.substr(0, line.find(": "));
    if (!flag_of(line).empty()) groups[group].insert(flag_of(line));
  }
  return groups;
}

const std::set<std::string> kOfTrain = {"model",       "data",       "batch",  "optimizer",
                                        "parallelism", "precision",  "memory", "logging",
                                        "checkpoints", "evaluation", "device", "configuration",
                                        "preferences", "adapters"};

TEST(Help, EachFlagOfTrainIsOfOneGroup) {
  settings::TrainSettings settings;
  const Fields fields = settings.fields();
  std::map<std::string, std::set<std::string>> expected;
  for (const Field& field : fields.all()) {
    EXPECT_TRUE(kOfTrain.contains(field.group))
        << "--" << field.name << ": '" << field.group << "'";
    expected[field.group].insert(field.name);
  }
  const auto shown = groups_of(help_of_train({"--help", "all"}).text);
  for (const auto& [group, names] : expected)
    EXPECT_EQ(shown.at(group), std::multiset<std::string>(names.begin(), names.end()));
  EXPECT_EQ(shown.at("configuration"),
            (std::multiset<std::string>{"recipe", "config", "print-config", "help-search"}));
  EXPECT_EQ(shown.size(), kOfTrain.size());
}

TEST(Help, TheShortFormFitsAScreenAndAHalf) {
  const Printed help = help_of_train({"--num-layers", "x", "-h"});
  EXPECT_EQ(help.code, 0);
  const Words lines = lines_of(help.text);
  EXPECT_LE(lines.size(), 68u);
  for (const std::string& line : lines) EXPECT_LE(line.size(), 100u) << line;
  const auto groups = groups_of(help.text);
  std::set<std::string> names;
  for (const auto& [group, flags] : groups) names.insert(group);
  std::set<std::string> expected = kOfTrain;
  expected.erase("preferences");  // its common flags are those of megatron dpo
  expected.erase("adapters");
  EXPECT_EQ(names, expected);
  for (const char* flag : {"num-layers", "preset"}) EXPECT_EQ(groups.at("model").count(flag), 1u);
  EXPECT_EQ(groups.at("memory").size(), 1u);
  EXPECT_NE(help.text.find("(9 more: --help memory)"), std::string::npos) << help.text;
  EXPECT_NE(help.text.find("--help all"), std::string::npos);
  EXPECT_EQ(help.text.find("--muon-nesterov"), std::string::npos);
}

TEST(Help, OfAGroupIsItsPartOfAll) {
  const std::string all = help_of_train({"--help=all"}).text;
  for (const std::string& group : kOfTrain) {
    const Printed help = help_of_train({"--help", group});
    EXPECT_EQ(help.code, 0);
    EXPECT_TRUE(help.text.starts_with(group + ": ")) << help.text;
    EXPECT_NE(all.find(help.text), std::string::npos) << group;
  }
  try {
    help_of_train({"--help", "modl"});
    ADD_FAILURE();
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("--help modl"), std::string::npos) << text;
    EXPECT_NE(text.find("optimizer, adapters, parallelism"), std::string::npos) << text;
  }
}

TEST(Help, FindsFlagsByNameAndText) {
  const auto found = [](const Words& arguments) {
    std::set<std::string> flags;
    for (const std::string& line : lines_of(help_of_train(arguments).text))
      if (!flag_of(line).empty()) flags.insert(flag_of(line));
    return flags;
  };
  EXPECT_EQ(found({"--help-search", "Dropout"}),
            (std::set<std::string>{"hidden-dropout", "attention-dropout", "lora-dropout", "seed",
                                   "no-load-rng"}));
  EXPECT_EQ(found({"--help-search=--dropout"}), found({"--help-search", "dropout"}));
  const std::string output = help_of_train({"--help-search", "use-kitchen-attention"}).text;
  EXPECT_NE(output.find("--use-kitchen-attention"), std::string::npos) << output;
  EXPECT_NE(output.find("refused:"), std::string::npos) << output;
  EXPECT_NE(output.find("--bf16"), std::string::npos) << output;
  EXPECT_NE(help_of_train({"--help-search", "warmup"}).text.find("--lr-warmup-fraction"),
            std::string::npos);
  EXPECT_NE(help_of_train({"--help-search", "bf16"}).text.find("-  --bf16 and --fp16 are mutually"),
            std::string::npos);
  EXPECT_TRUE(help_of_train({"--help", "rules"}).text.starts_with("rules: flags that exclude"));
  const Printed none = help_of_train({"--help-search", "num-layrs"});
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.text.find("did you mean --num-layers"), std::string::npos) << none.text;
  EXPECT_THROW(help_of_train({"--help-search"}), Error);
}

// In commands that share train's settings each flag has a group too.
TEST(Help, FlagsOfOtherCommandsHaveGroups) {
  training::EvaluationSettings evaluation;
  Fields fields;
  evaluation.fields(fields);
  for (const Field& field : fields.all()) EXPECT_NE(field.group, "") << field.name;
  corpus::PreprocessSettings preprocess;
  Fields others;
  preprocess.fields(others);
  for (const Field& field : others.all()) EXPECT_NE(field.group, "") << field.name;
}

TEST(Help, OfFewFlagsIsOneList) {
  int64_t few = 0;
  Fields fields;
  fields.add("few", &few, "a flag");
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(parse("program", "Does.", fields, {}, {"--help", "all"}), 0);
  std::fflush(stdout);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "Does.\n\nUsage: program\n\nOptions:\n"
            "  -h,--help                   print this help\n"
            "  --few INT                   a flag [0]\n");
}

}  // namespace
}  // namespace megatron::cli
