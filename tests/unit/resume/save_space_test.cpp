#include "resume/save_space.h"

#include <gtest/gtest.h>

namespace megatron::resume {
namespace {

TEST(SaveSpace, CountsTheCheckpointsOfARun) {
  settings::CheckpointSettings s;
  EXPECT_EQ(resume::most_checkpoints(s, 0, 100), 1);  // only the last step is saved
  s.save_interval = 30;
  EXPECT_EQ(resume::most_checkpoints(s, 0, 100), 4);
  EXPECT_EQ(resume::most_checkpoints(s, 0, 90), 3);
  EXPECT_EQ(resume::most_checkpoints(s, 30, 90), 2);
  EXPECT_EQ(resume::most_checkpoints(s, 90, 90), 0);
  s.save_keep = 2;
  EXPECT_EQ(resume::most_checkpoints(s, 0, 1000), 3);  // the oldest is removed last
  EXPECT_EQ(resume::most_checkpoints(s, 0, 60), 2);
  s.save_retain_interval = 300;
  EXPECT_EQ(resume::most_checkpoints(s, 0, 1000), 6);
  s = {};
  s.save_interval = 10;
  s.exit_interval = 25;
  EXPECT_EQ(resume::most_checkpoints(s, 0, 1000), 3);
  EXPECT_EQ(resume::most_checkpoints(s, 25, 1000), 3);  // 30, 40, 50
}

TEST(SaveSpace, NamesWhatIsMissing) {
  resume::SaveSpace space{
      .folder = "run", .checkpoint_bytes = 1000, .checkpoints = 12, .free_bytes = 12000};
  EXPECT_TRUE(space.fits());
  EXPECT_NE(space.text().find("12 checkpoints of 1.0 kB each, 12.0 kB in all"), std::string::npos)
      << space.text();
  space.free_bytes = 5500;
  EXPECT_FALSE(space.fits());
  EXPECT_NE(space.text().find("enough for 5: use --save-keep"), std::string::npos) << space.text();
  space.checkpoints = int64_t{1} << 62;
  EXPECT_FALSE(space.fits());
}

}  // namespace
}  // namespace megatron::resume
