#include "base/machine_limits.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/files.h"

namespace megatron {
namespace {

constexpr const char* kV1Mounts =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
constexpr const char* kV2Mounts = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";

// A root folder with test versions of files of /proc and /sys.
class MachineLimitsOf : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/machine_limits.XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = std::string(name) + "/";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void file(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
    std::ofstream(root_ + path) << text;
  }
  void write_groups(const std::string& groups, const std::string& mounts) {
    file("proc/self/cgroup", groups);
    file("proc/self/mountinfo", mounts);
  }
  MachineLimits limits() const { return machine_limits(root_); }
  std::string at(const std::string& path) const { return root_ + path; }

  // The machine's own limits, if no file sets one.
  const MachineLimits none_ = machine_limits("/nowhere/");
  std::string root_;
};

TEST_F(MachineLimitsOf, AMachineWithoutCgroups) {
  EXPECT_GE(none_.processors, 1);
  EXPECT_GT(none_.memory, int64_t{1} << 28);
  EXPECT_EQ(none_.memory_limit_file, "");
}

TEST_F(MachineLimitsOf, Version2) {
  write_groups("0::/job/step\n", kV2Mounts);
  file("sys/fs/cgroup/job/step/memory.max", "max\n");
  file("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(limits().memory, none_.memory);
  EXPECT_EQ(limits().processors, none_.processors);
  file("sys/fs/cgroup/job/memory.max", "200000000\n");  // the parent group's limit
  file("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(limits().memory, 200'000'000);
  EXPECT_EQ(limits().memory_limit_file, at("sys/fs/cgroup/job/memory.max"));
  EXPECT_EQ(limits().processors, 1);
  file("sys/fs/cgroup/job/step/memory.max", "100000000\n");  // the lower limit counts
  EXPECT_EQ(limits().memory, 100'000'000);
  file("sys/fs/cgroup/memory.max", "90000000\n");
  EXPECT_EQ(limits().memory, 90'000'000);
}

TEST_F(MachineLimitsOf, Version1) {
  write_groups("9:name=systemd:/\n4:memory:/a/b\n1:cpu,cpuacct:/a\n0::/\n", kV1Mounts);
  file("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "300000000\n");
  file("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  file("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits().memory, 300'000'000);
  EXPECT_EQ(limits().memory_limit_file, at("sys/fs/cgroup/memory/a/memory.limit_in_bytes"));
  EXPECT_EQ(limits().processors, none_.processors);
  file("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "25000\n");
  EXPECT_EQ(limits().processors, 1);
}

// A container's hierarchy begins at its own group, which /proc/self/cgroup names by the full path.
TEST_F(MachineLimitsOf, AContainerThatSeesAPartOfTheHierarchy) {
  write_groups("4:memory:/docker/77/inner\n",
               "35 31 0:32 /docker/77 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  file("sys/fs/cgroup/memory/memory.limit_in_bytes", "500000000\n");
  EXPECT_EQ(limits().memory, 500'000'000);
  file("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "400000000\n");
  EXPECT_EQ(limits().memory, 400'000'000);
  write_groups("4:memory:/elsewhere\n",
               "35 31 0:32 /docker/77 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  EXPECT_EQ(limits().memory, 500'000'000);
}

TEST_F(MachineLimitsOf, BothVersionsAtOnce) {
  write_groups(
      "4:memory:/\n0::/user\n",
      std::string(kV1Mounts) + "40 31 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  file("sys/fs/cgroup/memory/memory.limit_in_bytes", "700000000\n");
  file("sys/fs/cgroup/unified/user/memory.max", "600000000\n");
  EXPECT_EQ(limits().memory, 600'000'000);
}

TEST_F(MachineLimitsOf, FilesThatAreNotUnderstoodSetNone) {
  for (const char* text :
       {"", "\n", "many\n", "-5\n", "0\n", "1 2 3\n", "99999999999999999999\n"}) {
    write_groups("0::/\n", kV2Mounts);
    file("sys/fs/cgroup/memory.max", text);
    file("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(limits().memory, none_.memory) << text;
    EXPECT_EQ(limits().processors, none_.processors) << text;
  }
  for (const char* groups : {"", "0", "0:", "0::../../x\n", "::::\n", "0::no-slash\n"}) {
    write_groups(groups, kV2Mounts);
    EXPECT_EQ(limits().memory, none_.memory) << groups;
  }
  write_groups("0::/a\n", "- - -\n29 23 0:26 / -\n");
  EXPECT_EQ(limits().memory, none_.memory);
}

}  // namespace
}  // namespace megatron
