#include "training/same_settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "comm/threads.h"
#include "data/indexed_dataset.h"
#include "settings/settings.h"
#include "text.h"
#include "training/evaluation.h"

namespace megatron::training {
namespace {

using testing::error_of;
using testing::has;

// Flags of generate and serve, which this test does not cover.
const std::set<std::string, std::less<>> kOfCommands = {
    "prompt-file",       "output", "host", "port", "api-key-file", "chat-template",
    "served-model-name", "json"};

std::string compared(const Fields& fields) {
  std::string text;
  for (const ComparedSetting& s : compared_settings("train", fields, 2))
    text += s.name + "=" + s.value + "\n";
  return text;
}

// Gives a field another value. Returns false if there is none.
bool change(Field& field) {
  const std::string before = field.get();
  std::vector<std::string> candidates = field.choices;
  for (const char* more : {"7", "0.25", "other"}) candidates.push_back(more);
  if (field.is_switch) candidates = {"true", "false"};
  for (const std::string& candidate : candidates) {
    try {
      field.set({candidate});
    } catch (const Error&) {
      continue;
    }
    if (field.get() != before) return true;
  }
  return false;
}

TEST(SameSettings, EachFlagIsComparedOrListed) {
  settings::TrainSettings settings;
  Fields fields = settings.fields();
  ASSERT_GT(fields.all().size(), 200u);
  for (Field& field : fields.all()) {
    const std::string before = compared(fields);
    ASSERT_TRUE(change(field)) << field.name;
    const bool may_differ = comparison_of(field.name) == Comparison::nothing;
    EXPECT_EQ(compared(fields) == before, may_differ) << field.name;
    field.restore();
  }
}

TEST(SameSettings, TheListNamesFlagsThatThereAreAndSoDoesItsPage) {
  const std::string page = read_file(MEGATRON_TEST_SOURCES "/../docs/running.md");
  settings::TrainSettings settings;
  EvaluationSettings evaluation;
  Fields train = settings.fields(), eval;
  evaluation.fields(eval);
  for (const std::string_view flag : flags_with_own_comparison()) {
    EXPECT_TRUE(train.find(flag) != nullptr || eval.find(flag) != nullptr ||
                kOfCommands.contains(flag))
        << flag;
    EXPECT_TRUE(has(page, fmt::format("`--{}`", flag))) << flag;
  }
}

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "same-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void write_tokens(const std::string& prefix, int32_t first) {
  data::IndexedDatasetBuilder builder(prefix, DType::u16);
  builder.add_item(std::vector<int32_t>{first, 2, 3});
  builder.end_document();
  builder.finalize();
}

TEST(SameSettings, FilesAreComparedByContent) {
  const Folder at;
  write_tokens(at / "a", 1);
  write_tokens(at / "copy/b", 1);
  write_tokens(at / "c", 9);
  write_file(at / "list", at / "a");
  for (const char* name : {"m/config.json", "n/config.json"}) write_file(at / name, "{}");
  write_file(at / "m/model.safetensors", std::string(5000, 'a'));
  write_file(at / "n/model.safetensors", std::string(5000, 'a'));
  write_file(at / "k/iter_0000002/config.json", "{}");
  write_file(at / "k/iter_0000004/config.json", "{}");
  const auto with = [](const std::string& flag, const std::vector<std::string>& values) {
    settings::TrainSettings settings;
    Fields fields = settings.fields();
    fields.find(flag)->set(values);
    return compared(fields);
  };
  EXPECT_EQ(with("data-path", {at / "a"}), with("data-path", {at / "copy/b"}));
  EXPECT_NE(with("data-path", {at / "a"}), with("data-path", {at / "c"}));
  EXPECT_NE(with("data-path", {"1", at / "a", "2", at / "c"}),
            with("data-path", {"1", at / "a", "3", at / "c"}));
  EXPECT_NE(with("data-path", {at / "a"}), with("data-path", {at / "none"}));
  EXPECT_TRUE(has(with("data-args-path", {at / "list"}), "--data-args-path=content"));
  EXPECT_EQ(with("model", {at / "m"}), with("model", {at / "n"}));
  write_file(at / "n/model.safetensors", std::string(5000, 'b'));
  EXPECT_NE(with("model", {at / "m"}), with("model", {at / "n"}));
  std::string large(size_t{2} << 20, 'a');  // only samples of it are compared
  for (const char* name : {"m/model.safetensors", "n/model.safetensors"})
    write_file(at / name, large);
  EXPECT_EQ(with("model", {at / "m"}), with("model", {at / "n"}));
  large.back() = 'b';
  write_file(at / "n/model.safetensors", large);
  EXPECT_NE(with("model", {at / "m"}), with("model", {at / "n"}));
  EXPECT_TRUE(has(with("load", {at / "k"}), "--load=iteration 4 of 2, 4, content "));
  write_file(at / "k/latest_checkpointed_iteration.txt", "2\n");
  EXPECT_TRUE(has(with("load", {at / "k"}), "--load=iteration 2 of 2, 4, content "));
  EXPECT_TRUE(has(with("load", {at / "empty"}), "--load=nothing\n"));
  EXPECT_TRUE(has(with("load", {at / "copy"}), "--load=no checkpoint\n"));
}

// Returns the error that each rank throws.
std::vector<std::string> errors_of(const std::vector<std::vector<ComparedSetting>>& own) {
  std::vector<std::string> errors(own.size());
  comm::run_ranks(static_cast<int>(own.size()), [&](comm::Group& world) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    const auto r = static_cast<size_t>(world.rank());
    errors[r] = error_of([&] { require_same(world, runtime.stream(), own[r]); });
  });
  return errors;
}

std::vector<ComparedSetting> setting(const std::string& lr, const std::string& more = "",
                                     const std::string& command = "train") {
  std::vector<ComparedSetting> all = {{"the command", command, command}, {"--lr", lr, lr}};
  if (!more.empty()) all.push_back({more, "1", "one"});
  return all;
}

TEST(SameSettings, RanksNameWhatDiffersAndWhere) {
  for (const std::string& error : errors_of({setting("0.1"), setting("0.1"), setting("0.1")}))
    EXPECT_EQ(error, "");
  for (const std::string& error :
       errors_of({setting("0.1"), setting("0.2"), setting("0.1"), setting("0.1")}))
    EXPECT_EQ(
        error,
        "--lr differs between ranks: 0.1 on ranks 0, 2-3; 0.2 on rank 1; start all ranks with "
        "the same settings");
  for (const std::string& error :
       errors_of({setting("0.1", "--a"), setting(""), setting("0.1", "--b")}))
    EXPECT_EQ(
        error,
        "--lr differs between ranks: 0.1 on ranks 0, 2; not given on rank 1. --a differs "
        "between ranks: one on rank 0; not given on ranks 1-2. --b differs between ranks: not "
        "given on ranks 0-1; one on rank 2; start all ranks with the same settings");
  for (const std::string& error : errors_of({setting("1"), setting("2", "", "eval")}))
    EXPECT_EQ(error,
              "the command differs between ranks: train on rank 0; eval on rank 1; start all ranks "
              "with the same command");
  const std::string many = errors_of(
      {setting("1"), setting("2"), setting("3"), setting("4"), setting("5"), setting("6")})[3];
  EXPECT_TRUE(has(many, "4 on rank 3; other values on 2 ranks;")) << many;
}

}  // namespace
}  // namespace megatron::training
