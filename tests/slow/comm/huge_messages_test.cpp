// Messages between processes with more bytes than MPI can count.
#include <gtest/gtest.h>

#include <cstdio>

#include "dist/launch.h"

namespace megatron::testing {
namespace {

int64_t available_bytes() {
  std::FILE* const file = std::fopen("/proc/meminfo", "r");
  if (file == nullptr) return 0;
  long long kib = 0;
  for (char line[256]; std::fgets(line, sizeof line, file) != nullptr;)
    if (std::sscanf(line, "MemAvailable: %lld", &kib) == 1) break;
  std::fclose(file);
  return int64_t{kib} << 10;
}

TEST(Processes, MoveMoreThanTwoGigabytes) {
  if (!has_mpi()) GTEST_SKIP() << kNoMpi;
  // Both tensors of 2.5 GiB and the sender's copy of its tensor.
  const int64_t needed = int64_t{12} << 30, available = available_bytes();
  if (available < needed) {
    GTEST_SKIP() << "needs " << needed << " bytes of memory, and " << available << " are available";
  }
  const std::string here = std::filesystem::path(this_program()).parent_path().string();
  const Launched run = launch(2, here + "/dist_comm", "--scenario=huge", 500);
  EXPECT_EQ(run.code, 0) << run.text;
  for (const char* line : {"rank 0: 2684354560 and 2936012800 bytes arrived",
                           "rank 1: 2684354560 and 2936012800 bytes arrived"}) {
    EXPECT_NE(run.text.find(line), std::string::npos) << run.text;
  }
}

}  // namespace
}  // namespace megatron::testing
