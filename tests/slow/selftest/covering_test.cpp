// The search for layouts against all rows of values, each of which is asked for as a whole
// (unit/selftest draws some).
#include "selftest/covering.h"

#include <gtest/gtest.h>

#include <vector>

#include "selftest/layout_factors.h"

namespace megatron::selftest {
namespace {

std::vector<size_t> numbers_of(const Row& row) {
  std::vector<size_t> numbers;
  for (size_t f = 0, first = 0; f < row.size(); first += layout_factors()[f++].values.size())
    numbers.push_back(first + static_cast<size_t>(row[f]));
  return numbers;
}

struct AllRows {
  int64_t possible = 0;
  std::vector<std::vector<char>> pairs;  // 1 where a possible row has both values

  void add(const Row& row) {
    const std::vector<size_t> numbers = numbers_of(row);
    pairs.resize(128, std::vector<char>(128));
    for (const size_t a : numbers)
      for (const size_t b : numbers) pairs.at(a).at(b) = 1;
    ++possible;
  }
};

AllRows ask_for_every_row() {
  const std::vector<Factor>& factors = layout_factors();
  const Refusal refusal = layout_refusal({});
  AllRows all;
  Row row(factors.size(), 0);
  for (;;) {
    if (refusal(row).empty()) all.add(row);
    size_t f = factors.size();
    while (f > 0 && ++row[f - 1] == static_cast<int>(factors[f - 1].values.size())) row[--f] = 0;
    if (f == 0) return all;
  }
}

TEST(EveryLayout, ThatIsPossibleIsSearched) {
  const AllRows all = ask_for_every_row();
  const Covering covering = cover(layout_factors(), layout_refusal({}), 2);
  EXPECT_EQ(covering.possible, all.possible);
  AllRows covered;
  for (const Row& row : covering.rows) covered.add(row);
  EXPECT_EQ(covered.pairs, all.pairs);
}

}  // namespace
}  // namespace megatron::selftest
