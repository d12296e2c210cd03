#include "checkpoint/save.h"

#include <thread>

#include "faulty_files.h"
#include "trained_model.h"

namespace megatron::checkpoint {
namespace {

using testing::FaultyFiles;

class Saving : public ::testing::Test {
 protected:
  std::string whole() const { return folder_ / "m"; }

  TemporaryDirectory folder_;
  std::unique_ptr<comm::Group> ranks_ = comm::single();
  TrainedModel model_{DType::f32, true, 1};
};

TEST_F(Saving, WithoutRoomNothingIsWritten) {
  FaultyFiles files;
  const int64_t bytes = model_.contents(1, 3000).total_bytes();
  const auto error = [&] {
    return error_of([&] {
      Save save(whole(), model_.contents(1, 3000), *ranks_, model_.stream(), files,
                Save::Snapshot::copy);
      save.write();
      save.finish();
    });
  };
  files.set_free_bytes(bytes - 1);
  EXPECT_TRUE(contains(error(), fmt::format("has {} bytes", bytes - 1)) &&
              contains(error(), fmt::format("but {} bytes", bytes)) &&
              contains(error(), "free some space"))
      << error();
  EXPECT_TRUE(folder_.names().empty());
  files.set_free_bytes(bytes);
  EXPECT_EQ(error(), "");
  EXPECT_EQ(folder_.names(), (std::set<std::string>{"m"}));
  EXPECT_TRUE(contains(error_of([&] { check_room(folder_.path(), bytes + 1, files, "try less"); }),
                       "are needed: try less"));
  EXPECT_TRUE(contains(error_of([&] { check_room(folder_ / "absent", 1, system_files(), "x"); }),
                       "No such file"));
}

TEST_F(Saving, ACopyDoesNotChangeWithTheModel) {
  const std::string before = model_.bits();
  Save save(whole(), model_.contents(1, 3000), *ranks_, model_.stream(), system_files(),
            Save::Snapshot::copy);
  std::thread writer([&] { save.write(); });
  model_.fill(99);
  writer.join();
  EXPECT_FALSE(save.failed());
  EXPECT_FALSE(std::filesystem::exists(whole()));
  save.finish();
  EXPECT_EQ(save.path(), whole());
  EXPECT_NE(model_.bits(), before);
  model_.load(CheckpointDirectory(whole()));
  EXPECT_EQ(model_.bits(), before);
}

TEST_F(Saving, WithoutFinishIsRemoved) {
  {
    Save save(whole(), model_.contents(1, 3000), *ranks_, model_.stream(), system_files(),
              Save::Snapshot::none);
    save.write();
    EXPECT_EQ(folder_.names(), (std::set<std::string>{"m.tmp"}));
  }
  EXPECT_TRUE(folder_.names().empty());
  Save save(whole(), model_.contents(1, 3000), *ranks_, model_.stream(), system_files(),
            Save::Snapshot::none);
  EXPECT_TRUE(contains(error_of([&] { save.finish(); }), "was not written"));
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(Saving, ReplacesADirectoryOnlyByACheckpoint) {
  write_file(folder_ / "m/notes.txt", "mine");
  Contents plain = model_.contents(1, 3000);
  plain.trainer_state.reset();
  EXPECT_TRUE(contains(error_of([&] { save(whole(), plain, model_.stream()); }), "already exists"));
  EXPECT_EQ(read_file(folder_ / "m/notes.txt"), "mine");
  save(whole(), model_.contents(1, 3000), model_.stream());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "m/notes.txt"));
  CheckpointDirectory(whole()).verify(model_.pool());
  write_file(folder_ / "file", "");
  std::filesystem::create_symlink("m", folder_ / "link");
  for (const char* name : {"file", "link"}) {
    const auto attempt = [&] { save(folder_ / name, model_.contents(1, 3000), model_.stream()); };
    EXPECT_TRUE(contains(error_of(attempt), "is not a directory")) << name;
  }
  EXPECT_EQ(folder_.names(), (std::set<std::string>{"file", "link", "m"}));
}

TEST_F(Saving, AddsTheFormatAndReplacesAnOlderList) {
  Contents contents = model_.contents(1, 3000);
  contents.trainer_state = Json::parse(R"({"files":{"x":1},"seed":3,"xxh3":"no"})");
  save(whole(), contents, model_.stream());
  const CheckpointDirectory directory(whole());
  EXPECT_EQ(directory.trainer_state()["format"].as_integer(), kFormat);
  EXPECT_EQ(directory.trainer_state()["seed"].as_integer(), 3);
  EXPECT_EQ(directory.trainer_state().as_object().back().first, "xxh3");
}

TEST_F(Saving, CompanionsHavePlainNames) {
  Contents contents = model_.contents(1, 3000);
  for (const char* name : {"../x", "a/b", "", "..", "trainer_state.json"}) {
    contents.written_files = {{name, "x"}};
    EXPECT_TRUE(contains(error_of([&] { save(whole(), contents, model_.stream()); }),
                         "is not a plain "
                         "file name"))
        << name;
  }
  EXPECT_TRUE(folder_.names().empty());
}

}  // namespace
}  // namespace megatron::checkpoint
