#include "selftest/covering.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/philox.h"
#include "parallel/layer_layout.h"
#include "selftest/layout_factors.h"

namespace megatron::selftest {
namespace {

Refusal nothing() {
  return [](const Row&) { return std::string(); };
}

// Tuples of `strength` values in a row, by brute force.
using Tuple = std::vector<std::pair<size_t, int>>;
void add_tuples(const Row& row, int strength, size_t from, Tuple& chosen, std::set<Tuple>& tuples) {
  if (static_cast<int>(chosen.size()) == strength) {
    tuples.insert(chosen);
    return;
  }
  for (size_t f = from; f < row.size(); ++f) {
    chosen.emplace_back(f, row[f]);
    add_tuples(row, strength, f + 1, chosen, tuples);
    chosen.pop_back();
  }
}
std::set<Tuple> tuples_of(const std::vector<Row>& rows, int strength) {
  std::set<Tuple> tuples;
  Tuple chosen;
  for (const Row& row : rows) add_tuples(row, strength, 0, chosen, tuples);
  return tuples;
}

// All rows that are not refused; queries only whole rows.
std::vector<Row> all_rows(const std::vector<Factor>& factors, const Refusal& refusal) {
  std::vector<Row> rows;
  Row row(factors.size(), 0);
  for (;;) {
    if (refusal(row).empty()) rows.push_back(row);
    size_t f = 0;
    while (f < factors.size() && ++row[f] == static_cast<int>(factors[f].values.size()))
      row[f++] = 0;
    if (f == factors.size()) return rows;
  }
}

TEST(Covering, SmallFactorsWithoutConstraints) {
  const std::vector<Factor> factors = {
      {"a", {"0", "1"}}, {"b", {"0", "1"}}, {"c", {"0", "1"}}, {"d", {"0", "1", "2"}}};
  for (int strength = 1; strength <= 3; ++strength) {
    const Covering covering = cover(factors, nothing(), strength);
    EXPECT_EQ(covering.possible, 24);
    EXPECT_TRUE(covering.excluded.empty());
    EXPECT_EQ(tuples_of(covering.rows, strength),
              tuples_of(all_rows(factors, nothing()), strength));
    EXPECT_EQ(tuples_of(covering.rows, strength).size(), static_cast<size_t>(covering.tuples));
    // At least the product of the largest factors.
    const size_t least[] = {3, 6, 12};
    EXPECT_GE(covering.rows.size(), least[strength - 1]);
    EXPECT_LE(covering.rows.size(), least[strength - 1] + 3);
  }
}

// Constraints between three factors exclude a pair that no rule names. The checks may only depend
// on whole rows.
TEST(Covering, ImpliedExclusionsAreFoundWithTheirReason) {
  const std::vector<Factor> factors = {
      {"a", {"0", "1"}}, {"b", {"0", "1"}}, {"c", {"0", "1"}}, {"d", {"x", "y", "z"}}};
  const Refusal refusal = [](const Row& row) -> std::string {
    for (const int place : row) {
      if (place == kOpen) return "";
    }
    if (row[0] == 1 && row[1] == row[2]) return "a needs b and c to differ";
    if (row[3] == 2 && row[1] != row[2]) return "z needs b and c to be the same";
    return "";
  };
  const Covering covering = cover(factors, refusal, 2);
  ASSERT_EQ(covering.excluded.size(), 1u);
  const std::string text = describe(factors, covering.excluded[0]);
  EXPECT_TRUE(text == "a 1 with d z: a needs b and c to differ" ||
              text == "a 1 with d z: z needs b and c to be the same")
      << text;
  for (const Row& row : covering.rows) EXPECT_EQ(refusal(row), "") << describe(factors, row);
  EXPECT_EQ(tuples_of(covering.rows, 2), tuples_of(all_rows(factors, refusal), 2));
  EXPECT_EQ(describe(factors, Row{1, kOpen, 0, 2}), "a 1, c 0, d z");
}

TEST(Covering, NothingPossible) {
  const std::vector<Factor> factors = {{"a", {"0", "1"}}, {"b", {"0"}}};
  const Covering covering = cover(factors, [](const Row&) { return std::string("never"); }, 2);
  EXPECT_TRUE(covering.rows.empty());
  EXPECT_EQ(covering.excluded.size(), 2u);
  EXPECT_EQ(covering.excluded[1].reason, "never");
}

// Random whole rows of layouts. slow/selftest compares with all of them.
class OfLayouts : public ::testing::Test {
 protected:
  static constexpr int kDrawn = 1 << 20;

  // Those of the drawn rows that are not refused.
  static const std::vector<Row>& drawn() {
    static const std::vector<Row> rows = [] {
      const Refusal refusal = layout_refusal({});
      const RandomStream random(7, "rows");
      std::vector<Row> kept;
      uint64_t draws = 0;
      for (int i = 0; i < kDrawn; ++i) {
        Row row;
        for (const Factor& factor : layout_factors())
          row.push_back(static_cast<int>(random.bits(draws++) % factor.values.size()));
        if (refusal(row).empty()) kept.push_back(row);
      }
      return kept;
    }();
    return rows;
  }

  // The number of possible rows is that of all rows times the drawn ones' share, within five
  // standard deviations.
  static void check_possible(const Covering& covering) {
    double all = 1;
    for (const Factor& factor : layout_factors()) all *= static_cast<double>(factor.values.size());
    const auto kept = static_cast<double>(drawn().size());
    EXPECT_NEAR(static_cast<double>(covering.possible), all * kept / kDrawn,
                all * 5 * std::sqrt(kept) / kDrawn);
  }

  static Covering check(int strength, size_t most_rows) {
    const Refusal refusal = layout_refusal({});
    Covering covering = cover(layout_factors(), refusal, strength);
    fmt::print("layouts: {} rows cover {} sets of {} values that occur in {} possible rows\n",
               covering.rows.size(), covering.tuples, strength, covering.possible);
    check_possible(covering);
    EXPECT_LE(covering.rows.size(), most_rows);
    for (const Row& row : covering.rows) EXPECT_EQ(refusal(row), "");
    const std::set<Tuple> covered = tuples_of(covering.rows, strength);
    EXPECT_EQ(covered.size(), static_cast<size_t>(covering.tuples));
    const size_t some = std::min<size_t>(drawn().size(), 1000);
    for (const Tuple& tuple : tuples_of({drawn().begin(), drawn().begin() + some}, strength))
      EXPECT_TRUE(covered.contains(tuple)) << ::testing::PrintToString(tuple);
    return covering;
  }

  static void check_reasons(const Covering& covering) {
    std::string texts;
    for (const ExcludedPair& pair : covering.excluded)
      texts += describe(layout_factors(), pair) + "\n";
    for (const std::string_view text :
         {"tp 1 with sequence on: --sequence-parallel", "pp 1 with schedule zb-v: ",
          "dp 3 with instances 2: ", "sharding no_shard with instances 2: ",
          "recompute selective with offload activations: --cpu-offloading-num-layers"}) {
      EXPECT_NE(texts.find(text), std::string::npos) << text << " in:\n" << texts;
    }
    EXPECT_EQ(texts.find("more than 16"), std::string::npos) << texts;
  }

  // Rows become settings that place every layer on some stage.
  static void check_settings(const Covering& covering) {
    const LayoutLimits limits;
    for (const Row& row : covering.rows) {
      const LayoutSettings settings = layout_settings(row, limits);
      const auto shape = settings.parallel.pipeline(limits.num_layers);
      int64_t layers = 0;
      for (const auto& part :
           parallel::place_layers(limits.num_layers, shape, settings.parallel.placement()))
        layers += part.layers;
      EXPECT_EQ(layers, limits.num_layers);
      EXPECT_LE(settings.ranks(), limits.ranks);
      EXPECT_EQ(limits.sequences % (settings.data_parallel * settings.micro_batch), 0);
    }
  }
};

// The search leaves out what begins with refused values.
TEST_F(OfLayouts, RowsThatAreNotRefusedBeginWithoutAnObjection) {
  const Refusal refusal = layout_refusal({});
  ASSERT_GT(drawn().size(), 10000u);
  for (const Row& row : drawn()) {
    Row begun(row.size(), kOpen);
    for (size_t f = 0; f < row.size(); ++f) {
      ASSERT_EQ(refusal(begun), "") << describe(layout_factors(), begun);
      begun[f] = row[f];
    }
  }
}

// One test, since the search takes a second.
TEST_F(OfLayouts, PairsThatCanOccurDo) {
  const Covering covering = check(2, 45);
  EXPECT_EQ(cover(layout_factors(), layout_refusal({}), 2).rows, covering.rows);
  check_reasons(covering);
  check_settings(covering);
}

TEST_F(OfLayouts, TriplesThatCanOccurDo) { check(3, 290); }

}  // namespace
}  // namespace megatron::selftest
