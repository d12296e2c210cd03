#include "checkpoint/region.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace megatron::checkpoint {
namespace {

std::vector<int64_t> elements_of(const Region& region) {
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < region.count; ++i) {
    for (int64_t j = 0; j < region.run; ++j)
      elements.push_back(region.begin + i * region.stride + j);
  }
  return elements;
}

Region random_region(std::mt19937& random, int64_t elements) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % uint64_t(n)); };
  Region region;
  region.begin = below(elements);
  region.count = 1 + below(3);
  region.stride = 1 + below(elements);
  while (region.begin + (region.count - 1) * region.stride >= elements) --region.count;
  const int64_t room = elements - region.begin - (region.count - 1) * region.stride;
  region.run = below(std::min(region.stride, room) + 1);
  return region;
}

TEST(Coverage, CountsHoldersOfEachElement) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    const int64_t n = 1 + static_cast<int64_t>(random() % 20);
    std::vector<HeldRegion> regions;
    std::vector<int64_t> times(static_cast<size_t>(n));
    for (size_t left = random() % 6; left > 0; --left) {
      regions.push_back({random_region(random, n), 1 + static_cast<int64_t>(random() % 3)});
      for (const int64_t i : elements_of(regions.back().region))
        times[static_cast<size_t>(i)] += regions.back().holders;
    }
    const Coverage found = coverage(regions, n);
    const auto check = [&](const Coverage::Stretch& stretch, auto extreme) {
      const auto first = extreme(times.begin(), times.end());
      auto last = first;
      while (last != times.end() && *last == *first) ++last;
      EXPECT_EQ(stretch.times, *first);
      EXPECT_EQ(stretch.begin, first - times.begin());
      EXPECT_EQ(stretch.end, last - times.begin());
    };
    using Iterator = std::vector<int64_t>::iterator;
    check(found.least, [](Iterator a, Iterator b) { return std::min_element(a, b); });
    check(found.most, [](Iterator a, Iterator b) { return std::max_element(a, b); });
  }
}

TEST(Coverage, TellsWhatIsMissingOrDouble) {
  const auto text = [](std::vector<HeldRegion> regions) { return coverage(regions, 12).text(12); };
  EXPECT_EQ(text({}), "no rank holds elements [0, 12) of its 12");
  EXPECT_EQ(text({{{0, 1, 4, 4}}, {{8, 1, 4, 4}}}), "no rank holds elements [4, 8) of its 12");
  EXPECT_EQ(text({{{0, 3, 4, 3}}, {{3, 3, 4, 1}, 2}}),
            "elements [3, 4) of its 12 are held 2 times, and others once");
  EXPECT_TRUE(coverage({}, 0).even());
  const std::vector<HeldRegion> columns = {{{0, 3, 4, 1}, 2}, {{1, 3, 4, 3}, 2}};
  EXPECT_TRUE(coverage(columns, 12).even());
  EXPECT_EQ(coverage(columns, 12).most.end, 12);
  const std::vector<HeldRegion> cut_differently = {
      {{0, 1, 5, 5}}, {{5, 1, 7, 7}}, {{0, 3, 4, 2}}, {{2, 3, 4, 2}}};
  EXPECT_TRUE(coverage(cut_differently, 12).even());
}

TEST(Intervals, KnowWhatIsNew) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    Intervals set;
    std::vector<bool> there(30);
    for (int i = 0; i < 8; ++i) {
      const Region region = random_region(random, 30);
      bool is_new = false;
      for (const int64_t e : elements_of(region)) {
        is_new = is_new || !there[static_cast<size_t>(e)];
        there[static_cast<size_t>(e)] = true;
      }
      EXPECT_EQ(set.add(region), is_new);
    }
  }
}

}  // namespace
}  // namespace megatron::checkpoint
