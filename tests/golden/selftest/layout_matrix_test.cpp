// The layout matrix: its coverage, the agreement of every row with one rank, and the detection of
// each deliberate layout fault.
#include "selftest/layout_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <set>

#include "base/error.h"
#include "selftest/layout_factors.h"
#include "selftest/selftest.h"
#include "support.h"

namespace megatron::selftest {
namespace {

struct Ran {
  Summary summary;
  std::string text;
};

Ran run_matrix(SelftestOptions options) {
  Ran ran;
  options.layouts = 2;
  ran.summary = run(options, [&](std::string_view line) { ran.text += line; });
  return ran;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The set of impossible pairs is visible to users: a change of validation shows here.
void expect_excluded_as_listed(const LayoutMatrix& matrix) {
  std::cout << matrix.summary() << "\n";
  std::string text;
  for (const std::string& line : matrix.excluded()) text += line + "\n";
  EXPECT_EQ(matrix.excluded(), lines_of(MEGATRON_TEST_SOURCES "/golden/selftest/excluded.txt"))
      << "the list now:\n"
      << text;
}

// Expects rows to have every value of each factor but these.
void expect_values(const Covering& covering, const std::vector<size_t>& rows,
                   const std::set<std::string>& but) {
  std::set<std::string> absent;
  for (const Factor& factor : layout_factors())
    for (const std::string& value : factor.values) absent.insert(factor.name + " " + value);
  for (const size_t i : rows) {
    for (size_t f = 0; f < layout_factors().size(); ++f) {
      const auto& [name, values] = layout_factors()[f];
      absent.erase(name + " " + values[static_cast<size_t>(std::max(covering.rows[i][f], 0))]);
    }
  }
  EXPECT_EQ(absent, but);
}

// Ranks with different shares of the vocabulary must agree on the contents of each bucket.
void expect_small_buckets_of_a_vocabulary_shared_unevenly(const LayoutMatrix& matrix) {
  const MatrixRow& row = matrix.rows().back();
  EXPECT_EQ(row.layout.str(), "TP 4 SP, PP 1, DP 3 optim, overlap, buckets of 500, micro-batch 2");
  EXPECT_EQ(row.model, 0u);
  EXPECT_EQ(row.number, static_cast<int>(matrix.rows().size()) - 1);
  for (const TinyModel& model : tiny_models()) EXPECT_NE(*model.flags.vocab_size % 4, 0);
}

// One test, because the search for the rows takes most of its time.
TEST(Matrix, HasEveryPairOfValuesOrExcludesIt) {
  const LayoutMatrix matrix(2);
  expect_excluded_as_listed(matrix);
  expect_small_buckets_of_a_vocabulary_shared_unevenly(matrix);
  const std::vector<Factor>& factors = layout_factors();
  const Refusal refusal = layout_refusal(LayoutLimits{});
  const Covering& covering = matrix.covering();
  const size_t of_tasks =
      LayoutMatrix::rows_with_every_value(covering, LayoutMatrix::may_reward).size();
  const std::vector<size_t> of_adapters = LayoutMatrix::rows_with_every_value(
                                covering, LayoutMatrix::may_adapt),
                            of_preferences = LayoutMatrix::rows_with_every_value(
                                covering, LayoutMatrix::may_prefer),
                            of_predictions = LayoutMatrix::rows_with_every_value(
                                covering, LayoutMatrix::may_predict);
  EXPECT_EQ(covering.rows.size() + of_tasks + of_adapters.size() + of_preferences.size() +
                of_predictions.size() + 2,
            matrix.rows().size());
  EXPECT_LT(of_predictions.size(), 10u);
  EXPECT_LT(of_tasks, 10u);
  EXPECT_LT(of_adapters.size(), 10u);
  EXPECT_LT(of_preferences.size(), 10u);
  expect_values(covering, of_adapters,
                {"recompute mlp-chunks", "model bert", "model hybrid", "model t5"});
  expect_values(covering, of_preferences,
                {"recompute mlp-chunks", "packed off", "model bert", "model hybrid", "model t5"});
  for (const Row& row : covering.rows) EXPECT_EQ(refusal(row), "") << describe(factors, row);
  const auto in_rows = [&](size_t a, int x, size_t b, int y) {
    return std::ranges::any_of(covering.rows,
                               [&](const Row& row) { return row[a] == x && row[b] == y; });
  };
  const auto is_excluded = [&](size_t a, int x, size_t b, int y) {
    return std::ranges::any_of(covering.excluded, [&](const ExcludedPair& pair) {
      return pair.first == static_cast<int>(a) && pair.first_value == x &&
             pair.second == static_cast<int>(b) && pair.second_value == y;
    });
  };
  for (size_t a = 0; a < factors.size(); ++a) {
    for (size_t b = a + 1; b < factors.size(); ++b) {
      for (int x = 0; x < static_cast<int>(factors[a].values.size()); ++x) {
        for (int y = 0; y < static_cast<int>(factors[b].values.size()); ++y) {
          EXPECT_NE(in_rows(a, x, b, y), is_excluded(a, x, b, y))
              << factors[a].name << " " << factors[a].values[static_cast<size_t>(x)] << ", "
              << factors[b].name << " " << factors[b].values[static_cast<size_t>(y)];
        }
      }
    }
  }
}

// Runs every row in fp64, where a layout error cannot be mistaken for rounding, and every fourth in
// fp32. slow/selftest has all fp32 rows, and dist/training/LayoutRun has whole runs. Each part is a
// process, which finds the rows again.
constexpr int kParts = 3;
class PairsInFp64 : public ::testing::TestWithParam<int> {};

TEST_P(PairsInFp64, GiveWhatOneRankGives) {
  const Ran ran = run_matrix({.part = GetParam(), .parts = kParts, .precisions = Precisions::fp64});
  EXPECT_TRUE(ran.summary.failed.empty()) << ran.text;
  EXPECT_GE(ran.summary.passed.size(), 1u);
  for (const std::string& row : ran.summary.passed) std::cout << row << "\n";
}

INSTANTIATE_TEST_SUITE_P(Rows, PairsInFp64, ::testing::Range(0, kParts),
                         [](const auto& info) { return fmt::format("Part{}", info.param); });

TEST(PairsInFp32, GiveWhatOneRankGives) {
  const LayoutMatrix matrix(2);
  const Environment environment;
  MatrixRun run(environment, Precisions::fp32);
  for (size_t i = 1; i < matrix.rows().size(); i += 4) {
    const Report report = run.run(matrix.rows()[i]);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

constexpr size_t kLlama = 0, kGpt2 = 1, kExperts = 2, kLatent = 3, kBert = 4, kHybrid = 5;
struct Wrong {
  const char* fault;
  size_t model;                   // of the row
  const char *named, *not_named;  // tensors that the report must name, and must not
};

const std::vector<Wrong> kWrong = {
    Wrong{"dropped-all-reduce", kBert,
          "gradients of bert.encoder.layer.0.attention.self.query.weight", nullptr},
    Wrong{"loss-off-by-log-tp", kLlama, "gradients of lm_head.weight", nullptr},
    Wrong{"gradient-averaged-twice", kLlama, "gradients of lm_head.weight, fp64: error 0.",
          nullptr},
    Wrong{"stale-parameters", kLlama, "parameters of lm_head.weight", "FAILED: gradients of"},
    Wrong{"swapped-stages", kLatent, "gradients of layers.0.mlp.down.weight", nullptr},
    Wrong{"unreduced-norm-gradient", kLatent, "gradients of layers.0.attention_norm.weight",
          "FAILED: gradients of layers.0.mlp."},
    Wrong{"tied-gradient-twice", kGpt2, "gradients of transformer.wte.weight",
          "FAILED: gradients of transformer.h"},
    Wrong{"own-expert-bias", kExperts, "parameters of embedding.weight", "FAILED: gradients of"},
    Wrong{"swapped-experts", kExperts, "gradients of layers.1.mlp.experts.up.weight", nullptr},
    Wrong{"misplaced-expert-results", kExperts, "gradients of layers.1.mlp.router.weight", nullptr},
    Wrong{"expert-load-twice", kExperts, "gradients of layers.1.mlp.router.weight", nullptr},
    Wrong{"capacity-of-all-tokens", kExperts, "gradients of layers.1.mlp.experts.up.weight",
          nullptr},
    Wrong{"unmerged-denominators", kLlama, "gradients of", nullptr},
    Wrong{"misdirected-half", kLlama, "gradients of", nullptr},
    Wrong{"swapped-halves", kGpt2, "gradients of", nullptr},
    Wrong{"samples-counted-by-context-rank", kLlama, "fp64: error 0.5 is above", nullptr},
    Wrong{"counts-of-own-rank", kGpt2, "gradients of", nullptr},
    Wrong{"adapter-scale-doubled-by-tp", kExperts,
          "gradients of base_model.model.layers.0.mlp.down.lora_A", nullptr},
    Wrong{"unreduced-adapter-gradient", kExperts,
          "gradients of base_model.model.layers.0.mlp.up.lora_A",
          "gradients of base_model.model.layers.0.mlp.down.lora_A"},
    Wrong{"reference-with-dropout", kGpt2, "reference log-probability of step 0, without dropout",
          "FAILED: gradients of"},
    Wrong{"swapped-preferences", kExperts,
          "gradients of base_model.model.layers.0.attention.qkv.lora_A", nullptr}};

// One of the rows of a model that a fault comes to, with the fewest ranks. slow/selftest has all.
const MatrixRow* smallest_row_of(const Fault& fault, size_t model, const LayoutMatrix& matrix) {
  const MatrixRow* smallest = nullptr;
  for (const MatrixRow& row : matrix.rows()) {
    if (row.model != model || !comes_to(fault, row)) continue;
    if (smallest == nullptr || row.layout.ranks() < smallest->layout.ranks()) smallest = &row;
  }
  return smallest;
}

TEST(LayoutFaults, AreCaughtByARowThatNamesATensor) {
  const LayoutMatrix matrix(2);
  for (const auto& [name, model, named, not_named] : kWrong) {
    SCOPED_TRACE(name);
    const Fault& fault = fault_named(name);
    const MatrixRow* const row = smallest_row_of(fault, model, matrix);
    ASSERT_NE(row, nullptr);
    const Environment environment = fault.environment();
    const Report report = MatrixRun(environment, Precisions::fp64).run(*row);
    EXPECT_FALSE(report.passed()) << row->str();
    const std::string text = report.text();
    EXPECT_NE(text.find(named), std::string::npos) << text;
    if (not_named != nullptr) {
      EXPECT_EQ(text.find(not_named), std::string::npos) << text;
    }
  }
}

// One data-parallel rank. Both tensor-parallel ranks hold all experts and whole sequences.
MatrixRow with_whole_sequences() {
  return {.model = 2, .layout = {.tp = 2, .etp = 1, .sequence = true, .micro_batch = 2}};
}

TEST(LayoutFaults, ComeToRowsByHowExpertsAndSequencesLie) {
  const MatrixRow row = with_whole_sequences();
  for (const auto& [name, comes] :
       {std::pair{"own-expert-bias", true}, {"expert-load-twice", false}}) {
    const Fault& fault = fault_named(name);
    EXPECT_EQ(fault.in_row(row), comes) << name;
    const Environment environment = fault.environment();
    const Report report = MatrixRun(environment, Precisions::fp64).run(row);
    EXPECT_EQ(report.passed(), !comes) << name << "\n" << report.text();
  }
}

// Inputs beyond a border that are not read, and those that are, on the fewest ranks that have one.
TEST(LayoutFaults, OfConvolutionsAreCaughtOnTwoContextRanks) {
  struct At {
    const char* fault;
    bool packed;
  };
  for (const auto& [name, packed] :
       {At{"convolution-without-neighbour", false}, At{"convolution-past-beginnings", false},
        At{"convolution-past-beginnings", true}}) {
    const Fault& fault = fault_named(name);
    const MatrixRow row{.model = kHybrid, .packed = packed, .layout = {.cp = 2}};
    EXPECT_TRUE(fault.in_row(row)) << name;
    const Environment environment = fault.environment();
    const std::string text = MatrixRun(environment, Precisions::fp64).run(row).text();
    EXPECT_NE(text.find("FAILED: gradients of layers.0.attention.state_space.conv.weight"),
              std::string::npos)
        << name << "\n"
        << text;
  }
}

// Gradients of experts are added over ranks after every micro-batch; those of dense layers are not.
TEST(Matrix, ShardedGradientsOfExpertsOnSeveralRanksNeedNotHaveEqualBits) {
  MatrixRow row = with_whole_sequences();
  row.layout.sharding = parallel::Sharding::gradients;
  const Environment environment;
  const Report report = MatrixRun(environment).run(row);
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_EQ(report.text().find("bit for bit"), std::string::npos) << report.text();
}

TEST(LayoutFaults, AreNamedWithTheRowsThatCatchThem) {
  const Ran ran = run_matrix({.fault = "unreduced-norm-gradient"});
  ASSERT_EQ(ran.summary.failed.size(), 1u) << ran.text;
  EXPECT_EQ(ran.summary.failed[0].find("row "), 0u);
  EXPECT_NE(ran.text.find("FAILED  row "), std::string::npos) << ran.text;
  EXPECT_NE(ran.text.find("norm.weight, fp64: error "), std::string::npos) << ran.text;
}

TEST(LayoutFaults, HaveATestEachAndAreRefusedWhereNothingComesToThem) {
  const auto in_matrix = std::ranges::count_if(faults(), [](const Fault& fault) {
    EXPECT_FALSE(fault.text.empty());
    EXPECT_TRUE(fault.in_checks || fault.in_row) << fault.name;
    return fault.in_row != nullptr;
  });
  EXPECT_EQ(in_matrix, 23);
  EXPECT_THROW(run_matrix({.fault = "off-by-one-label"}), Error);
  EXPECT_THROW(run({.fault = "swapped-stages"}, [](std::string_view) {}), Error);
}

}  // namespace
}  // namespace megatron::selftest
