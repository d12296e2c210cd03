#include "base/file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "faulty_files.h"
#include "text.h"

namespace megatron {
namespace {

using testing::error_of;

namespace fs = std::filesystem;
using testing::Fault;
using testing::FaultyFiles;

class FileSystemTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "megatron_file_system_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name + "/";
  }
  void TearDown() override { fs::remove_all(folder_); }

  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  std::string folder_;
};

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST_F(FileSystemTest, DoesWhatTheSystemDoes) {
  const FileSystem& files = system_files();
  const std::string a = folder_ + "a", b = folder_ + "b";
  const int file = files.open(a, O_WRONLY | O_CREAT);
  ASSERT_GE(file, 0);
  EXPECT_EQ(::fcntl(file, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(files.resize(file, 10), 0);
  EXPECT_EQ(files.write(file, bytes_of("abc")), 3);
  EXPECT_EQ(files.write_at(file, bytes_of("xy"), 6), 2);
  EXPECT_EQ(files.sync(file), 0);
  EXPECT_EQ(files.close(file), 0);
  EXPECT_EQ(read_file(a), std::string("abc\0\0\0xy\0\0", 10));
  EXPECT_EQ(files.close(file), -1);
  EXPECT_EQ(files.rename(a, b), 0);
  EXPECT_FALSE(fs::exists(a));
  EXPECT_EQ(files.make_directory(a), 0);
  EXPECT_EQ(files.make_directory(a), -1);
  EXPECT_EQ(errno, EEXIST);
  if (files.exchange(a, b) == 0) {
    EXPECT_TRUE(fs::is_directory(b) && fs::is_regular_file(a));
  } else {
    EXPECT_TRUE(errno == EINVAL || errno == ENOSYS) << errno;
  }
  EXPECT_EQ(files.remove(a) + files.remove(b), 0);
  EXPECT_EQ(files.remove(b), -1);
  EXPECT_GT(files.free_bytes(folder_), 0);
  EXPECT_EQ(files.free_bytes(folder_ + "absent"), -1);
  EXPECT_EQ(files.open(folder_ + "absent", O_RDONLY), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(FileSystemTest, OutputFilesGoOnAfterWhatIsShortOrInterrupted) {
  const std::string text = "0123456789";
  for (const Fault fault : {Fault::interrupted, Fault::cut_short, Fault::io_error}) {
    for (int at = 0; at < 6; ++at) {
      const FaultyFiles files(fault, at);
      const std::string error = error_of([&] {
        OutputFile file(folder_ + "a", O_WRONLY | O_CREAT | O_TRUNC, files, "the file");
        file.resize(13);
        file.write(bytes_of(text));
        file.write_at(bytes_of("abc"), 10);
        file.sync();
        file.close();
      });
      EXPECT_EQ(files.open_files(), 0);
      if (fault == Fault::io_error) {
        EXPECT_EQ(error, at == 4 ? "cannot flush 'the file' to disk: Input/output error"
                                 : "cannot write 'the file': Input/output error");
      } else {
        EXPECT_EQ(error, "");
        EXPECT_EQ(read_file(folder_ + "a"), text + "abc");
      }
    }
  }
}

// Every operation of an atomic write fails once: the file is complete or absent.
TEST_F(FileSystemTest, AtomicFilesAreWholeOrNotThereWhateverFails) {
  const std::string path = folder_ + "below/a";
  FaultyFiles counted;
  write_file(path, "new", counted);
  const std::vector<std::string> operations = counted.operations();
  for (const Fault fault :
       {Fault::io_error, Fault::no_space, Fault::interrupted, Fault::cut_short}) {
    for (size_t at = 0; at < operations.size(); ++at) {
      fs::remove_all(folder_ + "below");
      const FaultyFiles files(fault, static_cast<int64_t>(at));
      const std::string error = error_of([&] { write_file(path, "new", files); });
      const bool goes_on = fault == Fault::interrupted || fault == Fault::cut_short;
      EXPECT_TRUE(!goes_on || error.empty()) << error;
      EXPECT_EQ(files.open_files(), 0);
      if (fs::exists(path)) EXPECT_EQ(read_file(path), "new");
      else EXPECT_NE(error, "");
      if (!fs::exists(folder_ + "below")) continue;
      const auto left = std::distance(fs::directory_iterator(folder_ + "below"), {});
      EXPECT_EQ(left, fs::exists(path) ? 1 : 0) << operations[at];
    }
  }
}

TEST_F(FileSystemTest, DirectoriesAreMadeAndRemovedWithAllBelow) {
  make_directories(folder_ + "a/b/c/");
  make_directories(folder_ + "a/b");
  write_file(folder_ + "a/b/file", "x");
  write_file(folder_ + "kept", "x");
  fs::create_symlink(folder_ + "kept", folder_ + "a/link");
  fs::create_symlink("nowhere", folder_ + "a/b/dangling");
  EXPECT_NE(error_of([&] {
              make_directories(folder_ + "kept/below");
            }).find("cannot create the directory '" + folder_ + "kept"),
            std::string::npos);
  const FaultyFiles faulty(Fault::io_error, 1);
  EXPECT_EQ(error_of([&] { remove_tree(folder_ + "a", faulty); }),
            "cannot remove '" + folder_ + "a/b/dangling': Input/output error");
  remove_tree(folder_ + "a");
  remove_tree(folder_ + "absent");
  EXPECT_EQ(entries(), 1u);
  EXPECT_EQ(read_file(folder_ + "kept"), "x");
}

TEST_F(FileSystemTest, DirectoriesAreFlushedOrSayWhyNot) {
  sync_directory(folder_);
  const FaultyFiles open(Fault::io_error, 0), sync(Fault::io_error, 1);
  for (const FaultyFiles* files : {&open, &sync}) {
    EXPECT_EQ(error_of([&] { sync_directory(folder_, *files); }),
              "cannot flush the directory '" + folder_ + "' to disk: Input/output error");
    EXPECT_EQ(files->open_files(), 0);
  }
}

}  // namespace
}  // namespace megatron
