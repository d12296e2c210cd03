#include "base/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "text.h"

namespace megatron {
namespace {

using testing::error_of;

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "megatron_files_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  std::string folder_;
};

TEST_F(Files, ReadsWhatWasWritten) {
  std::string bytes(3'000'001, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  write_file(folder_ + "/a", bytes);
  EXPECT_EQ(read_file(folder_ + "/a"), bytes);
  write_file(folder_ + "/empty", "");
  EXPECT_EQ(read_file(folder_ + "/empty"), "");
  EXPECT_EQ(entries(), 2u);
}

TEST_F(Files, ReadsFilesThatDoNotKnowTheirSize) {
  EXPECT_NE(read_file("/proc/self/status").find("Pid:"), std::string::npos);
  EXPECT_EQ(read_file("/dev/null"), "");
}

TEST_F(Files, ReadErrorsNamePathAndReason) {
  EXPECT_EQ(error_of([&] { read_file(folder_ + "/none"); }),
            "cannot open '" + folder_ + "/none': No such file or directory");
  EXPECT_EQ(error_of([&] { read_file(folder_); }),
            "cannot read '" + folder_ + "': it is a directory");
  EXPECT_THROW(read_file(""), Error);
  EXPECT_THROW(read_file(std::string("a\0b", 3)), Error);
}

TEST_F(Files, ReadsNoMoreThanTheLimit) {
  write_file(folder_ + "/a", "hello");
  EXPECT_EQ(read_file(folder_ + "/a", 5), "hello");
  EXPECT_EQ(error_of([&] { read_file(folder_ + "/a", 4); }),
            "'" + folder_ + "/a' is larger than 4 bytes, the limit for files of this kind");
  EXPECT_EQ(error_of([&] { read_file("/dev/zero", 10000); }),
            "'/dev/zero' is larger than 10000 bytes, the limit for files of this kind");
}

TEST_F(Files, MapsBytes) {
  write_file(folder_ + "/a", "hello");
  MappedFile map(folder_ + "/a");
  MappedFile moved(std::move(map));
  ASSERT_EQ(moved.bytes().size(), 5u);
  EXPECT_EQ(std::memcmp(moved.bytes().data(), "hello", 5), 0);
  EXPECT_TRUE(map.bytes().empty());
  write_file(folder_ + "/a", "other text");  // a mapping keeps the file from which it was made
  EXPECT_EQ(std::memcmp(moved.bytes().data(), "hello", 5), 0);
}

TEST_F(Files, MapsAnEmptyFileAndRefusesWhatIsNoFile) {
  write_file(folder_ + "/empty", "");
  EXPECT_TRUE(MappedFile(folder_ + "/empty").bytes().empty());
  EXPECT_THROW(MappedFile{folder_}, Error);
  EXPECT_THROW(MappedFile{folder_ + "/none"}, Error);
  EXPECT_THROW(MappedFile{"/dev/null"}, Error);
  ASSERT_EQ(::mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  EXPECT_THROW(MappedFile{folder_ + "/pipe"}, Error);  // does not wait for a writer
}

TEST_F(Files, AtomicFileAppearsOnlyWhenCommitted) {
  const std::string path = folder_ + "/a";
  write_file(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
    file.write(std::string(2'500'000, 'x'));
    EXPECT_EQ(file.size(), 2'500'003);
    EXPECT_EQ(read_file(path), "old");
    EXPECT_EQ(entries(), 2u);
    file.commit();
    EXPECT_EQ(read_file(path), "new" + std::string(2'500'000, 'x'));
    EXPECT_EQ(entries(), 1u);
    EXPECT_THROW(file.commit(), InternalError);
    EXPECT_THROW(file.write("more"), InternalError);
  }
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, AtomicFileWithoutCommitLeavesNothing) {
  write_file(folder_ + "/a", "old");
  {
    AtomicFile(folder_ + "/a").write("new");
  }
  {
    AtomicFile(folder_ + "/b").write(std::string(2'000'000, 'x'));
  }
  EXPECT_EQ(read_file(folder_ + "/a"), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, AtomicFileMakesDirectories) {
  write_file(folder_ + "/x/y/z.txt", "deep");
  EXPECT_EQ(read_file(folder_ + "/x/y/z.txt"), "deep");
  write_file(folder_ + "/file", "");
  EXPECT_NE(error_of([&] { write_file(folder_ + "/file/below.txt", ""); }).find(folder_ + "/file"),
            std::string::npos);
}

TEST_F(Files, AtomicFileRefusesDevicesAndDirectories) {
  EXPECT_THROW(AtomicFile("/dev/null"), Error);
  EXPECT_THROW(AtomicFile{folder_}, Error);
  EXPECT_THROW(AtomicFile(""), Error);
  EXPECT_THROW(AtomicFile(folder_ + "/" + std::string(300, 'n')), Error);
}

TEST_F(Files, WritersOfOneNameDoNotMix) {
  const std::string path = folder_ + "/a";
  std::vector<std::thread> threads;
  for (char c = 'a'; c < 'e'; ++c) {
    threads.emplace_back([&path, c] {
      for (int i = 0; i < 5; ++i) write_file(path, std::string(100'000, c));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = read_file(path);
  EXPECT_EQ(text, std::string(100'000, text[0]));
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, FullDiskIsAnErrorAndLeavesTheOldFile) {
  // A limit on the size of files simulates a full disk: write() first returns short, then fails.
  const std::string path = folder_ + "/a";
  write_file(path, "old");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1'500'000, 1'500'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] { write_file(path, std::string(4'000'000, 'x')); });
    ::_exit(error == "cannot write '" + path + "': " + write_failure(EFBIG) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, WriteFailuresSayWhatToChange) {
  EXPECT_EQ(write_failure(ENOSPC),
            "No space left on device: free some space or write somewhere else");
  EXPECT_NE(write_failure(EFBIG).find("File too large: raise the file size limit"),
            std::string::npos);
  EXPECT_NE(write_failure(EROFS).find("file system: choose a location"), std::string::npos);
  EXPECT_EQ(write_failure(EIO), "Input/output error");
}

}  // namespace
}  // namespace megatron
