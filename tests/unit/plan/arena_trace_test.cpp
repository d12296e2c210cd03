// Steps of many micro-batches are extrapolated from two short ones, and leave an arena as if they
// had been executed.
#include "plan/arena_trace.h"

#include <gtest/gtest.h>

#include <deque>
#include <set>

namespace megatron::plan {
namespace {

std::shared_ptr<Arena> arena() {
  return Arena::make({DeviceKind::meta, 0}, MemoryClass::activations);
}

// One stage of a pipeline: `ahead` forwards, then alternating forwards and backwards, then
// backwards. A forward keeps blocks of several sizes, and each action uses temporary blocks, so
// that holes move.
class Stage {
 public:
  Stage(Arena& arena, int ahead) : arena_(arena), ahead_(ahead) {}

  void step(int micro_batches) {
    if (!stays_) stays_ = take(1000);
    const int ahead = std::min(ahead_, micro_batches);
    for (int i = 0; i < ahead; ++i) forward();
    for (int i = ahead; i < micro_batches; ++i) {
      forward();
      backward();
    }
    while (!live_.empty()) backward();
    const auto update = take(5000);
  }

 private:
  using Block = std::shared_ptr<Storage>;
  Block take(int64_t bytes) { return arena_.allocate(bytes, "test"); }

  void forward() {
    std::vector<Block> kept;
    for (const int64_t bytes : {704, 896, 448, 576, 256, 576}) {
      const Block work = take(bytes / 2 + 64);
      kept.push_back(take(bytes));
    }
    live_.push_back(std::move(kept));
  }
  void backward() {
    std::vector<Block> kept = std::move(live_.front());
    live_.pop_front();
    Block gradient = take(448);
    while (!kept.empty()) {
      const Block work = take(kept.back()->bytes() + 128);
      kept.pop_back();
      gradient = take(448);
    }
  }

  Arena& arena_;
  int ahead_;
  std::deque<std::vector<Block>> live_;
  Block stays_;
};

struct Seen {
  ArenaEvents first, less, more;
};

constexpr int kAhead = 3, kLess = 2 * kAhead + 2;

class ArenaSteps : public ::testing::Test {
 protected:
  ArenaSteps() {
    const auto short_one = arena();
    ArenaTrace trace;
    short_one->listen(&trace);
    Stage stage(*short_one, kAhead);
    const auto see = [&](int micro_batches) {
      stage.step(micro_batches);
      return trace.take();
    };
    seen_ = {see(kLess), see(kLess), see(kLess + 1)};
    short_one->listen(nullptr);
  }
  Seen seen_;
};

TEST_F(ArenaSteps, PlayedAreThoseThatAreMade) {
  const auto part = repeated_part(seen_.less, seen_.more);
  ASSERT_TRUE(part);
  ASSERT_FALSE(part->empty());
  std::set<int64_t> marks;
  for (const int count : {kLess, kLess + 1, 20, 65, 300, 5001}) {
    const auto made = arena();
    ArenaReplay played(*made);
    Stage stage(*made, kAhead);
    const auto first = lengthened(seen_.first, *part, count - kLess);
    const auto later = lengthened(seen_.less, *part, count - kLess);
    ASSERT_TRUE(first && later);
    for (int i = 0; i < 3; ++i) {
      stage.step(count);
      played.play(i == 0 ? *first : *later);
      EXPECT_EQ(played.high_water(), made->high_water()) << count << " micro-batches, step " << i;
      EXPECT_EQ(played.in_use(), made->in_use());
    }
    marks.insert(made->high_water());
  }
  EXPECT_GT(marks.size(), 1u);  // otherwise any short step would be enough
}

TEST_F(ArenaSteps, WhatIsPlayedOnceMoreIsTheLongerStep) {
  const auto part = repeated_part(seen_.less, seen_.more);
  ASSERT_TRUE(part);
  const auto longer = lengthened(seen_.less, *part, 1);
  ASSERT_TRUE(longer);
  EXPECT_EQ(flattened(*longer), seen_.more);
  // A part that repeats after another part would be inserted there, which gives another step.
  const ArenaEvents less = {8, -1, 16, -1, 8, -1}, more = {8, -1, 8, -1, 16, -1, 8, -1};
  const auto other = repeated_part(less, more);
  ASSERT_TRUE(other);
  EXPECT_NE(flattened(lengthened(less, *other, 1).value()), more);
}

TEST_F(ArenaSteps, APartThatIsNotRepeatedIsNone) {
  EXPECT_FALSE(repeated_part(seen_.first, seen_.more));  // one of them allocates a block that stays
  EXPECT_FALSE(repeated_part(seen_.more, seen_.less));
  ArenaEvents other = seen_.more;
  other.back() -= 64;
  EXPECT_FALSE(repeated_part(seen_.less, other));
}

TEST_F(ArenaSteps, WithoutWhatStaysTheFirstIsLikeTheOthers) {
  EXPECT_NE(seen_.first, seen_.less);
  EXPECT_EQ(without_kept(seen_.first), seen_.less);
  EXPECT_EQ(without_kept({64, 128, 192, -2, 256, -2, 0, -1}),
            (ArenaEvents{128, 192, -2, 256, -2, 0, -1}));
}

// The high-water mark is the same for any larger number of repetitions.
TEST_F(ArenaSteps, APartIsPlayedNoLongerThanItChangesAnything) {
  const auto part = repeated_part(seen_.less, seen_.more);
  const auto played = [&](int64_t again) {
    ArenaReplay replay(*arena());
    replay.play(*lengthened(seen_.less, *part, again));
    return replay.high_water();
  };
  EXPECT_EQ(played(int64_t{1} << 50), played(20000));
}

TEST(ArenaTrace, BlocksOfBeforeAreNotPlayed) {
  const auto real = arena();
  ArenaTrace trace;
  real->listen(&trace);
  auto before = real->allocate(100, "test");
  EXPECT_EQ(trace.take(), ArenaEvents{128});
  const auto held = real->allocate(64, "test");
  before.reset();
  const ArenaEvents seen = trace.take();
  EXPECT_EQ(seen, (ArenaEvents{64, 0}));
  EXPECT_FALSE(lengthened(seen, {}, 0));
  real->listen(nullptr);
}

}  // namespace
}  // namespace megatron::plan
