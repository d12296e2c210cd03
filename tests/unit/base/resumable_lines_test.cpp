// Lines that a later run continues.
#include "base/resumable_lines.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "text.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

class Resumable : public ::testing::Test {
 protected:
  Resumable() {
    std::string pattern = (fs::temp_directory_path() / "lines-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Resumable() override { fs::remove_all(folder_); }

  std::string path() const { return folder_ + "/out.jsonl"; }
  std::string partial() const { return path() + ".partial"; }
  ResumableLines open(const Json& settings = Json::Object{{"--seed", 3}}) const {
    return ResumableLines({.path = path(),
                           .flag = "--output",
                           .settings = settings,
                           .count = 3,
                           .number = [](const Json& line) { return line["n"].as_integer(); }});
  }
  static std::string line(int n) { return R"({"n": )" + std::to_string(n) + R"(, "text": "é\n"})"; }

  std::string folder_;
};

TEST_F(Resumable, AppearsWholeAndInOrder) {
  ResumableLines lines = open();
  for (const int n : {2, 0}) lines.append(n, line(n));
  EXPECT_TRUE(lines.has(2));
  EXPECT_FALSE(lines.has(1));
  EXPECT_EQ(lines.done(), 2);
  EXPECT_FALSE(fs::exists(path()));
  lines.append(1, line(1));
  EXPECT_EQ(lines.line(2), line(2));
  lines.commit();
  EXPECT_EQ(read_file(path()), line(0) + "\n" + line(1) + "\n" + line(2) + "\n");
  EXPECT_FALSE(fs::exists(partial()));
}

// Simulates an earlier process that was killed after any byte.
TEST_F(Resumable, GoesOnFromAnyByte) {
  {
    ResumableLines lines = open();
    for (const int n : {2, 0, 1}) lines.append(n, line(n));
  }
  const std::string whole = read_file(partial());
  const size_t header = whole.find('\n') + 1;
  for (size_t size = 0; size <= whole.size(); size += size + 1 < header ? header - 1 : 1) {
    write_file(partial(), whole.substr(0, size));
    ResumableLines lines = open();
    const auto done = size < header
                          ? 0
                          : std::count(whole.begin() + static_cast<ptrdiff_t>(header),
                                       whole.begin() + static_cast<ptrdiff_t>(size), '\n');
    ASSERT_EQ(lines.done(), done) << size;
    for (const int n : {2, 0, 1}) {
      ASSERT_EQ(lines.has(n), done > (n == 2 ? 0 : n == 0 ? 1 : 2));
      if (!lines.has(n)) lines.append(n, line(n));
    }
    ASSERT_EQ(read_file(partial()), whole) << size;
  }
}

TEST_F(Resumable, WhatIsNoLineIsMadeAgain) {
  for (const std::string bad : {R"({"n": 3})", R"({"n": 2})", R"({"m": 1})", "{", ""}) {
    fs::remove(partial());
    open().append(2, line(2));
    const std::string good = read_file(partial());
    write_file(partial(), good + bad + "\n" + line(0) + "\n");
    const ResumableLines lines = open();
    EXPECT_EQ(lines.done(), 1) << bad;
    EXPECT_EQ(read_file(partial()), good);
  }
}

TEST_F(Resumable, OtherSettingsAreNamed) {
  open(Json::Object{{"--seed", 3}, {"--old", "x"}}).append(0, line(0));
  const std::string before = read_file(partial());
  expect_contains(error_of([&] { open(Json::Object{{"--seed", 4}, {"--new", true}}); }),
                  {"out.jsonl.partial", "1 lines", "--seed was 3 and is now 4",
                   "--new was not given", "--old was \"x\" and is now not given", "remove it"});
  EXPECT_EQ(read_file(partial()), before);
}

TEST_F(Resumable, WithoutALineAnySettingsWillDo) {
  std::string header;
  {
    const ResumableLines lines = open(Json::Object{{"--seed", 4}});
    header = read_file(partial());
  }
  EXPECT_FALSE(fs::exists(partial()));
  write_file(partial(), header);  // as a killed process leaves it
  open().append(0, line(0));
  EXPECT_EQ(open().done(), 1);
}

TEST_F(Resumable, RefusesWhatItDidNotWrite) {
  for (const std::string bad : {"hello\n", "{\"n\": 1}\n"}) {
    write_file(partial(), bad);
    expect_contains(error_of([&] { open(); }),
                    {"out.jsonl.partial", "is not the unfinished output of --output"});
    EXPECT_EQ(read_file(partial()), bad);
  }
  fs::remove(partial());
  fs::create_directory(partial());
  expect_contains(error_of([&] { open(); }), {"out.jsonl.partial", "is not a regular file"});
}

TEST_F(Resumable, OneProcessAtATime) {
  const ResumableLines lines = open();
  expect_contains(error_of([&] { open(); }), {"out.jsonl.partial", "another process"});
}

TEST_F(Resumable, WhatIsNoFileIsWrittenAtTheEnd) {
  ResumableLines lines({.path = "/dev/null",
                        .flag = "--output",
                        .settings = Json::Object{},
                        .count = 1,
                        .number = {}});
  lines.append(0, line(0));
  EXPECT_EQ(lines.line(0), line(0));
  lines.commit();
  EXPECT_FALSE(fs::exists("/dev/null.partial"));
}

}  // namespace
}  // namespace megatron::testing
